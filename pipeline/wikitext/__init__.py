"""Wikitext to the text that a reader of the page sees; `plain_text` is where to begin reading."""

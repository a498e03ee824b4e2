"""Converts wikitext to the text that a reader of the page sees. Start with `plain_text`."""

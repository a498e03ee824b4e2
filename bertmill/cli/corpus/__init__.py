"""Commands about dumps and corpora."""

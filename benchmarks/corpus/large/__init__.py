"""Builds of corpora of any size, and the dumps for them."""

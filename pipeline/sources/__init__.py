"""Readers of raw text. Each one turns its work units into raw documents and counted skips."""

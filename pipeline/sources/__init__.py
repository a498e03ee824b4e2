"""Readers of raw text: each turns its work units into raw documents and counted skips."""

"""Checks and views of a finished corpus: ``bertmill verify`` and ``bertmill inspect``."""

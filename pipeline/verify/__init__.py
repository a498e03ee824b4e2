"""Checks and shows a finished corpus: ``bertmill verify`` and ``bertmill inspect``."""

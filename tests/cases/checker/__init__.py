"""Checks the answers of `bertmill explain` to the case files."""

"""Reuses the results of an earlier build for unchanged pages."""

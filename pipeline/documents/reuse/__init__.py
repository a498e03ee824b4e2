"""Reusing what an earlier build made of pages that have not changed."""

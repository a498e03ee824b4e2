"""Labeled examples from files, their checks, and their tokens."""

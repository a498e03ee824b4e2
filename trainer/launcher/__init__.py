"""Starts the ranks under Ray Train; the only package that imports it."""

"""Starts the ranks under Ray Train. No other package imports Ray Train."""

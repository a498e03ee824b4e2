"""Determines what a template call shows: handwritten rules, parser functions, and tables from a dump."""

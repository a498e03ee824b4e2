"""Kills and breaks both jobs at random moments, and compares the results with undisturbed ones."""

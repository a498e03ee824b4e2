"""Measures speed, quality and robustness; results/ holds the results with their commands."""

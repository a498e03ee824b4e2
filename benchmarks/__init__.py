"""Measures speed, quality and robustness. results/ has the results and the commands that made them."""

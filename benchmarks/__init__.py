"""Speed, quality and robustness, measured; results with their commands lie in results/."""

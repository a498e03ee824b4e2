"""A training run: set-up, the loop, resume and evaluation."""

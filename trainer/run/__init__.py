"""A training run: the loop, its step, its saves and its reports."""

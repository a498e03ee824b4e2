"""The kinds of tasks: what their labels mean, their losses and their metrics."""

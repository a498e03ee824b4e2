"""Fine-tunes a model over the tasks of a suite and compares its figures with published ones."""

"""Fine-tunes a model over the tasks of a suite and writes the figures beside published ones."""

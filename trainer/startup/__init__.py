"""The start of a training run: its identity, the network and the data, checks, the checkpoint to resume."""

"""Checkpoints: files, manifest, sharded parts, the store that commits them, and the lease of a run."""

"""The trainer: speed, the loader, checkpoints, and the same outputs as other programs."""

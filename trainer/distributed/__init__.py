"""The ranks of a run and their collectives."""

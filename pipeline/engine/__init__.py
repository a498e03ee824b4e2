"""Runs stages on Ray Data: maps, shuffles, commits, progress, and the identity of a build."""

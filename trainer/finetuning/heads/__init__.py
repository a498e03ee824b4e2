"""Encoders with the head of a task."""

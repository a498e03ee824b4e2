"""Reads and writes models: Hugging Face directories, runs, and initial weights."""

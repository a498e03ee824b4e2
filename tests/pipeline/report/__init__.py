"""Tests of pipeline.report."""

"""Forecasts of time, memory and cost."""

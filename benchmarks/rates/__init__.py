"""Measures the rates that ``bertmill plan`` and the scaling page multiply out."""

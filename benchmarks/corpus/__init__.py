"""The stages after extraction, and whole builds."""

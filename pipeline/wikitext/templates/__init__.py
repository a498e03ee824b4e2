"""What a template call shows: hand-made rules, parser functions, and what is learned from a dump."""

"""Masked-LM targets: the rules, the selection of positions, and word lists."""

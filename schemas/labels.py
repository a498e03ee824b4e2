"""The label of a sentence pair. Every manifest states the convention."""

# As in google-research/bert, 0 means that B follows A. For sentence order, 1 means swapped.
LABEL_CONVENTIONS = {
    "nsp": {"0": "is_next", "1": "random_next"},
    "sop": {"0": "in_order", "1": "swapped"},
    "none": {},
}
# Written in next_sentence_label when the objective has no sentence label.
NO_LABEL = -1

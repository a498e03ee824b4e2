"""The label of a sentence pair: its convention, which every manifest states, and its absence."""

# As in google-research/bert: 0 when B is the text that follows A. For sentence order, 1 means swapped.
LABEL_CONVENTIONS = {
    "nsp": {"0": "is_next", "1": "random_next"},
    "sop": {"0": "in_order", "1": "swapped"},
    "none": {},
}
# Written in next_sentence_label when the objective has no sentence label.
NO_LABEL = -1

"""Makes the training sequences of one bucket with pure functions on arrays. Start with `make_instances`."""

"""Training sequences of one bucket, by pure functions on arrays. Start reading at `make_instances`."""

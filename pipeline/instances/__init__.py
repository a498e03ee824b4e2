"""Training rows of one bucket, by pure functions on arrays; `make_instances` is where to begin reading."""

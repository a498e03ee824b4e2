"""Which documents duplicate others: pure functions on keys, hashes and signatures."""

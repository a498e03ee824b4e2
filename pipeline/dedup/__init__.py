"""Which documents repeat others: pure functions on keys, hashes and signatures."""

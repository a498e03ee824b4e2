"""Finds duplicate documents with pure functions on keys, hashes and signatures."""

"""The sentence splitter: where sentences end, what it knows about languages, and how it was learned."""

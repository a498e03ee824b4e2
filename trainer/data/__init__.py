"""From shards to micro-batches: the corpus, its order, and the caches on the way."""

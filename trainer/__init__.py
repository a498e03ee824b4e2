"""The second job: from shards to a trained, evaluated and exported BERT."""

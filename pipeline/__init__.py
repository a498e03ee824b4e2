"""The corpus job: raw dumps to Parquet shards of masked, paired, tokenized instances."""

"""The columns of the Parquet files that the stages write and the trainer reads."""

"""What a run records: metrics, history, start times, FLOPs."""

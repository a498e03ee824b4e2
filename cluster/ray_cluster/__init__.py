"""Ray clusters: connection, job submission, and metrics on the Prometheus endpoint."""

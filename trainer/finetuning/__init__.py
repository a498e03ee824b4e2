"""Fine-tuning on labeled tasks."""

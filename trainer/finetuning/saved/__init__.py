"""Fine-tuned models as Hugging Face directories, and their predictions."""

"""Held-out metrics of a model, during training and of a saved model."""

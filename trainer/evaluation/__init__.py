"""Held-out figures of a model, during training and of a saved model."""

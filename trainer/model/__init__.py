"""The network: configuration, encoder, attention, pretraining heads and objectives."""

"""Serving a model: its image, its containers, its weights and its state."""

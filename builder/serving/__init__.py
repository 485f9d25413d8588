"""A model that is served: its image, its container, its weights, its state."""

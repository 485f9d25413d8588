"""A model that is served: its image, weights, container and state."""

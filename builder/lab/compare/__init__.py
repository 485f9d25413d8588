"""The differences between two images."""

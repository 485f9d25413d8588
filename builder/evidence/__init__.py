"""The evidence about an image, and the verdict whether it is enough for a model."""

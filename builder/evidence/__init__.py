"""The evidence of an image, and the decision whether a model's requirements are met."""

"""Comparison of two images: their contents and the differences."""

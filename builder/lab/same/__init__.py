"""Compares the answers of two images: to forced texts, and to questions with a checkable answer."""

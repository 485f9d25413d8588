"""Proves the chat templates and parsers of an image without a GPU."""

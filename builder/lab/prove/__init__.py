"""Chat templates and parsers of an image, proved without a GPU."""

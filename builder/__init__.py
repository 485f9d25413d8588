"""Numbered vLLM images: composed from templates, pinned, recorded in images.lock, rolled back at once."""

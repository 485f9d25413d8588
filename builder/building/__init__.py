"""A build, from the request to the numbered image."""

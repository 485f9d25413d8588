"""A running server, measured."""

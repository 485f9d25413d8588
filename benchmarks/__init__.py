"""Benchmarks: the time that commands take, beside the time of what a user would do instead."""

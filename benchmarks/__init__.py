"""Benchmarks: compares the times of commands with the times of their alternatives."""

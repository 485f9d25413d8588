"""Servers measured: throughput, probes, and the comparison of two."""

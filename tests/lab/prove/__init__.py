"""Tests of `builder.proving`."""

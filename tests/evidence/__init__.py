"""Tests of builder/evidence."""

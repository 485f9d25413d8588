"""Tests of upgrades and of what puts a model back."""

"""Checkpoints: weights made from others by recorded steps."""

"""Checkpoints: weights that recorded steps make from other weights."""

"""Investigations of images: bench, prove, bisect, upgrade, checkpoints, report."""

"""Checkpoints: weights made from others by recorded, resumable, verified steps. `planning` is pure: headers in, a plan
of byte ranges out; the other modules read sources, write the result and record it."""

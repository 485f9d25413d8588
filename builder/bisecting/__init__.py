"""The search for the change that broke a model: which image to try next, and what the verdicts come to."""

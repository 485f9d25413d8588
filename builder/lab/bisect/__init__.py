"""The search for the change that broke a model."""

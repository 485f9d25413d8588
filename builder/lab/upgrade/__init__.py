"""The steps of an upgrade, and the way back."""

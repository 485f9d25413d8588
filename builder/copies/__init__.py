"""Copies of mods and recipes from other repositories: where they came from, and what was changed since."""

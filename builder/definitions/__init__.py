"""The files that a user writes: images, mods, recipes, checkpoints and builder.yaml, read and checked."""

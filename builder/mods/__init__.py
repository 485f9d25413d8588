"""Which mods go into an image, and whether they would take."""

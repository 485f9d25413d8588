"""images.lock and checkpoints.lock: the records, their format, and the only code that writes them."""

"""Numbered images: their names, their state in the engine, the pointers to them, and the record of them."""

"""Numbered images: transactions, pointers, claims, build directories."""

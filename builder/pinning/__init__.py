"""Resolves requested sources to pins: exact versions, commits and hashes."""

"""The version of everything that a build takes, resolved once and recorded."""

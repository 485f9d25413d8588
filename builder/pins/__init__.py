"""The versions of everything in a build, resolved once and recorded."""

"""Exit codes, keys of files and messages on recipes in words, for `builder explain` and docs/reference."""

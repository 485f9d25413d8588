"""Common ground: errors, events, files, words, the project."""

"""The command line: words typed, values printed."""

"""The command line: reads typed words and prints values."""

"""The behaviour of an image's front end, proven without a GPU."""

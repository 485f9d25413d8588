"""What the everyday commands take, side by side with what a person would do instead."""

"""The commands, free of printing: a function called after each command, and its variants beside it
(`preview_build`)."""

"""What the command line calls: a module a verb, free of printing."""

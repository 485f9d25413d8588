"""Parts of the up command: what has to be here before a server starts."""

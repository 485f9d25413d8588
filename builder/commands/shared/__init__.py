"""Parts that several commands have in common, and that are made of commands themselves."""

"""Parts of the init command."""

"""The steps of an upgrade, and the journal by which an interrupted one goes on."""

"""The parts of an upgrade that are made of other commands: its target, candidate, server, pointers and report."""

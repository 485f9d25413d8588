"""From sources as they are asked for to pins: exact versions, commits and hashes."""

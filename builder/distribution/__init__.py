"""Images on more than one machine: registries, nodes and remote builders."""

"""The machines of the nodes: what they say of their network links and devices, and builder.yaml with that in it."""

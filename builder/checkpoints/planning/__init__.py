"""The plan of a checkpoint: which bytes of which file go where. Nothing in here reads or writes anything."""

"""Everything found out about images or made beside them: bench, prove, bisect, upgrade, checkpoints, report."""

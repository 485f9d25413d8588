"""One build: request, resolution, planning, baking, verification, commit."""

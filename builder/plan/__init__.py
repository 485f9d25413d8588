"""The plan of an image and its Dockerfile. Pure: no disk, no network, no engine."""

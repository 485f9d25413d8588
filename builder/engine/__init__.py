"""The only code that knows Docker: client, images, containers, BuildKit, registries."""

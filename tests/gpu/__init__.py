"""The shipped mods on a real GPU: `make test-gpu`, which is no part of `make test`."""

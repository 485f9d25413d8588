"""What the tests of locks need: child processes, and a folder for several users."""

from __future__ import annotations

from tests.processes import fork, public_folder

__all__ = ["fork", "public_folder"]

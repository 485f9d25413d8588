"""The patterns of names that users give to files and folders, and that images.lock records."""

from __future__ import annotations

# A name may become an argument, or a part of a command that a message proposes.
DEFINITION = r"(?![.-])[^/\\\x00-\x1f\x7f\"'`$;&|<>(){}\[\]*?#!]+"
RECIPE_FILE = r"(?![-~])(?!(?:.*/)?\.\.(?:/|$))[^\\\x00-\x1f\x7f]+"

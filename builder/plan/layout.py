"""The files that a build directory has, by path: those of a plan, and those that record what came of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

BAKE = "bake.json"
PLAN = "plan.json"
RECORD = "images.lock"
ADOPTED = "adopted.json"
# The packages of the distribution that a build has installed, as an index; empty until it has.
PACKAGES = "distribution-packages.txt"
# Text that users review, and the files of mods; a vendored pull request is the largest of it.
LARGEST_FILE = 256 << 20
LARGEST_BUILD = 1 << 30
MOST_FILES = 100_000

# The layers of the image, the lowest first: tells which are other ones where it is built again.
LAYERS = "layers.txt"
_TOP = frozenset({BAKE, PLAN, RECORD, ADOPTED, LAYERS})
_NAME = "[A-Za-z0-9][A-Za-z0-9._+-]*"
_OF_PART = re.compile(
    r"Dockerfile|build-metadata\.yaml|distribution-packages\.txt|parts/(?:apt|bake-mod|step)\.sh"
    rf"|python/{_NAME}\.txt|patches/{_NAME}\.patch"
)
# Files that tools leave behind, and git's own: never part of a mod (``mod_files``).
_NEVER = frozenset({".git", ".DS_Store", "__MACOSX", "__pycache__"})


def belongs(path: str, mods: Mapping[str, Collection[str]]) -> bool:
    """True if a build directory of these definitions has a file ``path``. ``mods`` has the mods of each, by name; the
    files of the last definition, called by the empty name, lie at the top, those of its parents in their folders."""
    return path in _TOP or bool(_OF_PART.fullmatch(_within(path, mods)[1])) or may_be_executable(path, mods)


def may_be_executable(path: str, mods: Mapping[str, Collection[str]]) -> bool:
    """True for the file of a mod, the only ones whose execute bit counts."""
    definition, inside = _within(path, mods)
    head, _, below = inside.partition("/")
    name, _, file = below.partition("/")
    return bool(file) and head == "mods" and name in mods.get(definition, ()) and _NEVER.isdisjoint(file.split("/"))


def _within(path: str, mods: Mapping[str, Collection[str]]) -> tuple[str, str]:
    """The definition that a path belongs to, and the path within its part."""
    first, _, rest = path.partition("/")
    return (first, rest) if rest and first in mods else ("", path)

"""Names of files that are not taken from others, because programs obey what they find under them."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from builder.definitions.mods.mod import FETCHED

if TYPE_CHECKING:
    from collections.abc import Iterable

_OWN_BY_MODS = frozenset({".gitignore", ".gitkeep", ".gitattributes"})
_UNFIT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
# With a HEAD beside it, git takes a folder for a bare repository and obeys its settings.
_OF_A_REPOSITORY = frozenset({"config", "commondir", "objects", "refs"})


def unwelcome(path: str) -> str:
    """The reason why a file of this path in a build directory is not taken, or nothing.

    Folders with a dot are those of version control and of editors: git takes a ``.git`` for a repository wherever it
    lies, and runs the programs that its settings name.
    """
    if _UNFIT.search(path):
        return "its name holds a control character"
    *folders, name = (_as_git_reads(part) for part in path.split("/"))
    for depth, folder in enumerate(folders):
        fetched = folder == FETCHED and depth > 1 and folders[depth - 2] == "mods"
        if folder.startswith(".") and not fetched:
            return "it lies in a folder whose name begins with a dot"
    if any(re.match("git~[0-9]", part) for part in (*folders, name)):
        return "git takes it for its own"
    return "git takes it for its own" if name.startswith(".git") and name not in _OWN_BY_MODS else ""


def _as_git_reads(part: str) -> str:
    """A name as file systems read it that ignore case or invisible characters."""
    return "".join(character for character in part if unicodedata.category(character) != "Cf").casefold()


def repositories(paths: Iterable[str]) -> set[str]:
    """The folders among ``paths`` that git would take for bare repositories."""
    names: dict[str, set[str]] = {}
    for path in paths:
        parts = path.split("/")
        for depth, part in enumerate(parts):
            names.setdefault("/".join(parts[:depth]), set()).add(part.casefold())
    return {folder for folder, inside in names.items() if "head" in inside and not inside.isdisjoint(_OF_A_REPOSITORY)}

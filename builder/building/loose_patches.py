"""Patches that the script of a mod applies itself: read from the diffs beside it, so that they can be tried as a hint.

A hint only: nobody can tell from outside where a script applies a patch, and whether it goes on without it.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.definitions.mods import script_facts
from builder.definitions.mods.mod import ModPatch
from builder.sources.git import unified_diff

if TYPE_CHECKING:
    from builder.definitions.mods.mod import Mod

# The folders that packages are installed into, and those of a repository that hold its packages.
_INSTALLED = ("dist-packages", "site-packages")
_IN_REPOSITORY = ("src", "python", "lib")
_SIDES = ("a", "b", "c", "i", "o", "w")  # git's prefixes


def as_declared(mod: Mod) -> Mod:
    """Returns ``mod`` with the patches that its script names as if mod.yaml declared them; ``mod`` itself if it
    declares patches, or has none whose package can be told."""
    facts = script_facts.of(mod)
    if mod.patches or facts is None or not facts.patches:
        return mod
    contents = {file.path: file.content for file in mod.files}
    patches = {file: _patch(file, contents[file]) for file in facts.patches}
    files = tuple(
        replace(file, content=_within(file.content, patch)) if (patch := patches.get(file.path)) else file
        for file in mod.files
    )
    return replace(mod, patches=tuple(patch for patch in patches.values() if patch), files=files)


def _within(diff: bytes, patch: ModPatch) -> bytes:
    """The part of ``diff`` that changes the package: the diff of a pull request brings tests and pages along, which
    scripts leave out, as they are nowhere in site-packages."""
    first, *rest = re.split(rb"^(?=diff --git )", diff, flags=re.MULTILINE)
    inside = [part for part in rest if _touches(part, patch)]
    return first + b"".join(inside) if inside else diff


def _touches(part: bytes, patch: ModPatch) -> bool:
    head = part.partition(b"\n")[0].decode("utf-8", "replace")
    return any(name.split("/")[patch.strip : patch.strip + 1] == [patch.package] for name in head.split(" ")[2:])


def _patch(file: str, diff: bytes) -> ModPatch | None:
    """The patch to the package that most files of ``diff`` belong to; None where that cannot be told."""
    names = {hunk.file for hunk in unified_diff.hunks(diff, 0) if hunk.file != "/dev/null"}
    roots = Counter(root for name in sorted(names) if (root := _root(name)))
    return ModPatch(file, *roots.most_common(1)[0][0]) if roots else None


def _root(name: str) -> tuple[str, int] | None:
    """The importable package of a file that a diff names, and how many folders stand before it."""
    folders = name.split("/")[:-1]
    strip = 0
    installed = [index for index, folder in enumerate(folders) if folder in _INSTALLED]
    if installed:
        strip = installed[-1] + 1
    elif folders and folders[0] in _SIDES:
        strip = 1
    strip += not installed and folders[strip : strip + 1] != [] and folders[strip] in _IN_REPOSITORY
    package = folders[strip] if strip < len(folders) else ""
    return (package, strip) if package.isidentifier() else None

"""The changes that mods make to installed packages before a patch is tried: files that are copied over them, and
scripts that may have changed them."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from builder.definitions.mods import script_facts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from builder.definitions.mods.mod import FileCopy, Mod, ModPatch

# The folders that packages are installed into.
_INSTALLED = ("/site-packages/", "/dist-packages/")
# A script that names the package and one of these may change any file of it.
_SWEEPS = re.compile(
    r"\*|\bfind\b|\bgrep\s+-\w*r|\bwalk\(|\bpip3?\b|\buv\b|\bcurl\b|\bwget\b|\bgit\s+(?:clone|am|apply)\b"
)
_PROSE = (".md", ".txt", ".rst")


def copied_files(mod: Mod) -> dict[str, bytes]:
    """The files that ``mod`` puts into installed packages, by their path in site-packages; those from an address only
    once they are fetched."""
    contents = {file.path: file.content for file in (*mod.files, *mod.fetched)}
    return {
        path: contents[source] for copy in mod.copies for source, path in _copied(copy, contents) if source in contents
    }


def may_change(mod: Mod, patch: ModPatch, touched: Collection[str]) -> bool:
    """True if ``mod`` may change one of the files ``touched`` that ``patch`` is tried on, in a way that only the build
    shows: by a file that is not fetched yet, or by a script that speaks of it."""
    contents = {file.path for file in (*mod.files, *mod.fetched)}
    unfetched = (path for copy in mod.copies if copy.is_remote for source, path in _copied(copy, {copy.staged: b""}))
    if any(copy.is_remote and copy.staged not in contents for copy in mod.copies) and set(touched) & set(unfetched):
        return True
    facts = script_facts.of(mod)
    if facts is None:
        return False
    # What those change was tried.
    tried = {each.file for each in mod.patches}
    stems = "|".join(sorted({re.escape(PurePosixPath(path).stem) for path in touched} or {r"(?!)"}))
    names_file, names_package = re.compile(rf"\b(?:{stems})\b"), re.compile(rf"\b{re.escape(patch.package)}\b")
    for text in _texts(mod, tried):
        if names_file.search(text) or (names_package.search(text) and _SWEEPS.search(text)):
            return True
    return False


def _copied(copy: FileCopy, contents: Collection[str]) -> Iterator[tuple[str, str]]:
    """Each file of a copy that lands in site-packages: its path in the mod, and that in site-packages."""
    into = copy.to.endswith("/") or copy.to == "." or copy.to.endswith("/.")
    name = copy.staged.rpartition("/")[2]
    target = f"{copy.to.removesuffix('.').rstrip('/')}/{name}" if into else copy.to
    for source in contents:
        if source == copy.staged:
            path = target
        elif source.startswith(f"{copy.staged}/"):
            path = f"{target}/{source.removeprefix(f'{copy.staged}/')}"
        else:
            continue
        for folder in _INSTALLED:
            if folder in path:
                yield source, path.rpartition(folder)[2]


def _texts(mod: Mod, tried: Collection[str]) -> Iterator[str]:
    """The texts of a mod that may say what its script does."""
    for file in mod.files:
        if file.path not in tried and not file.path.endswith(_PROSE):
            yield file.content.decode("utf-8", "replace")

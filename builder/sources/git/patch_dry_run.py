"""Do patches apply to a package? Tried by git on the few files that they touch, in a folder that holds nothing else.

The rule is that of the step which bakes a patch (``builder.definitions.mods.mod.ModPatch``): all of its context, or in
place already, or part of its context, or an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builder.errors import SourceError
from builder.sources.git import apply
from builder.sources.git.git_command import Answer, Place, read

if TYPE_CHECKING:
    from builder.sources.git.apply import Shift

_APPLY = ["apply", "-v", "--whitespace=nowarn"]

Read = Callable[[Collection[str]], dict[str, bytes]]
"""Gives those of some paths that exist, with their contents; raises SourceError."""


@dataclass(frozen=True)
class Patch:
    """A unified diff, ``strip`` folders to take off its names, and what messages call it."""

    name: str
    diff: bytes
    strip: int = 1

    @functools.cached_property
    def touched(self) -> frozenset[str]:
        """The files that it changes, adds or removes; none for what git cannot read as a patch."""
        try:
            return apply.touched(self.name, self.diff, self.strip)
        except SourceError:
            return frozenset()


@dataclass(frozen=True)
class Tree:
    """The files of the importable ``package`` as they lie in site-packages before any mod. ``before`` are patches that
    its source is built with, which apply."""

    package: str
    read: Read
    before: tuple[Patch, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What became of one patch. ``shifts`` are the hunks that apply, but not just as they say; ``problem`` says by file
    and hunk what does not apply, or why the patch was not tried."""

    state: Literal["applies", "in place", "fails", "not tried"]
    shifts: tuple[Shift, ...] = ()
    problem: str = ""


def fetched(tree: Tree, patches: Iterable[Patch]) -> Tree:
    """The same with all files that ``patches`` touch at hand, fetched together. Raises SourceError."""
    inside = f"{tree.package}/"
    wanted = {file for patch in patches for file in patch.touched if file.startswith(inside)}
    held = tree.read(wanted) if wanted else {}
    return replace(tree, read=lambda paths: {path: held[path] for path in paths if path in held})


def attempt(tree: Tree, patches: Sequence[Patch]) -> tuple[Outcome, ...]:
    """What becomes of ``patches``, each after those before it that apply. Raises SourceError where ``tree`` cannot be
    read."""
    import tempfile

    wanted = {file for patch in patches for file in patch.touched}
    files = fetched(tree, patches).read(wanted)
    with tempfile.TemporaryDirectory(prefix="builder-") as name:
        folder = Path(name)
        for path, content in files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        for patch in tree.before if wanted else ():
            _make(folder, patch, [f"--include={file}" for file in sorted(wanted)])
        return tuple(_outcome(folder, patch) for patch in patches)


def _make(folder: Path, patch: Patch, only: Sequence[str]) -> None:
    made = _git(folder, patch, *only)
    if made.status:
        where = apply.failures(made.said, patch.diff, patch.strip)
        raise SourceError(f"{patch.name} does not apply to its own source: {where}")


def _outcome(folder: Path, patch: Patch) -> Outcome:
    whole = _git(folder, patch)
    if not whole.status:
        return Outcome("applies", apply.shifts(whole.said, patch.diff, patch.strip))
    if not _git(folder, patch, "--reverse", "--check").status:
        return Outcome("in place")
    part = _git(folder, patch, "-C1")
    if not part.status:
        return Outcome("applies", apply.shifts(part.said, patch.diff, patch.strip))
    return Outcome("fails", problem=apply.failures(part.said, patch.diff, patch.strip))


def _git(folder: Path, patch: Patch, *options: str) -> Answer:
    place = Place(folder / "no-repository", apply.NO_REPOSITORY.address)
    return read(place, [*_APPLY, f"-p{patch.strip}", *options], patch.diff)

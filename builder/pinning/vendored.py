"""Vendored patches of pull requests: files beside the definition that requests them, named after their content."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from builder.errors import LockError
from builder.lock.pins import GitPin, Pins, PullPin
from builder.project import below
from builder.storage import atomic_file, regular_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from builder.project import Project

_LARGEST = 64 << 20  # bytes of a patch


def load(project: Project, definition: str, pins: Pins, fresh: Mapping[str, bytes]) -> dict[str, bytes]:
    """The patch of every pull request in ``pins`` by its SHA-256; ``fresh`` ones are not on disk yet.

    Raises LockError for a file that is missing or was edited.
    """
    return {
        pull.sha256: fresh[pull.sha256] if pull.sha256 in fresh else _read(project, path, pull)
        for path, pull in _files(project, definition, pins)
    }


def faults(project: Project, definition: str, pins: Pins) -> Iterator[LockError]:
    """The error of each file that is missing or was edited, as ``load`` raises it."""
    for path, pull in _files(project, definition, pins):
        try:
            _read(project, path, pull)
        except LockError as error:
            yield error


def is_missing(project: Project, definition: str, source: str, pull: PullPin) -> bool:
    """True where the project does not have the patch of a pinned pull request: it was never committed, or removed."""
    return not patch_file(project, definition, source, pull).exists()


def keep(project: Project, definition: str, pins: Pins, patches: Mapping[str, bytes]) -> None:
    """Writes the patches that are not on disk yet; called before images.lock names them."""
    for path, pull in _files(project, definition, pins):
        if path.is_file() and _sha256(path.read_bytes()) == pull.sha256:
            continue
        atomic_file.make_folder(path.parent)
        atomic_file.write(path, patches[pull.sha256])


def _files(project: Project, definition: str, pins: Pins) -> Iterator[tuple[Path, PullPin]]:
    for name, pin in sorted(pins.sources.items()):
        for pull in pin.pulls if isinstance(pin, GitPin) else ():
            yield patch_file(project, definition, name, pull), pull


def patch_file(project: Project, definition: str, source: str, pull: PullPin) -> Path:
    """The file that holds the patch of a pull request of ``source``."""
    return project.dockerfiles / definition / "pulls" / f"{source}-{pull.number}-{pull.sha256[:12]}.patch"


def _read(project: Project, path: Path, pull: PullPin) -> bytes:
    file = project.relative(path)
    try:
        content = regular_file.read(below(project.root, path).resolve(), _LARGEST)
    except OSError as error:
        raise LockError(
            f"{file}, the vendored patch of pull request {pull.number}, cannot be read: {error.strerror}",
            hint="take it back with git, or `--update` its source to vendor the pull request as it is now",
        ) from None
    if _sha256(content) != pull.sha256:
        raise LockError(
            f"{file} was edited: it is not the patch of pull request {pull.number} that images.lock pins",
            hint=f"take it back: `git checkout -- {file}`",
        )
    return content


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

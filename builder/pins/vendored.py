"""The patches of pull requests are files beside the definition that requests them, named after their content.

The vendored files come first, then the repeated fetch of patches that the project lacks: it may be published without
the texts of others, and images.lock says what they have to be.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.base import files
from builder.base.errors import LockError, SourceError
from builder.base.events import Message
from builder.base.project import below_project
from builder.lock.model import GitPin, Pins, PullPin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from builder.base.events import Report
    from builder.base.project import Project
    from builder.definitions.image import ImageDefinition
    from builder.sources.pulls import EarlierPatch

_LARGEST = 64 << 20  # bytes of a patch


def load_vendored(project: Project, definition: str, pins: Pins, fresh: Mapping[str, bytes]) -> dict[str, bytes]:
    """The patch of every pull request in ``pins`` by its SHA-256; ``fresh`` ones are not on disk yet. Raises LockError
    for a file that is missing or was edited."""
    return {
        pull.sha256: fresh[pull.sha256] if pull.sha256 in fresh else _read(project, path, pull)
        for path, pull in _files(project, definition, pins)
    }


def vendored_faults(project: Project, definition: str, pins: Pins) -> Iterator[LockError]:
    """The error of each file that is missing or was edited."""
    for path, pull in _files(project, definition, pins):
        try:
            _read(project, path, pull)
        except LockError as error:
            yield error


def keep_vendored(project: Project, definition: str, pins: Pins, patches: Mapping[str, bytes]) -> None:
    """Writes the patches that are not on disk yet; called before images.lock names them."""
    for path, pull in _files(project, definition, pins):
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != pull.sha256:
            files.make_folder(path.parent)
            files.write_atomically(path, patches[pull.sha256])


def patch_file(project: Project, definition: str, source: str, pull: PullPin) -> Path:
    """The file that holds the patch of a pull request of ``source``."""
    return project.dockerfiles / definition / "pulls" / f"{source}-{pull.number}-{pull.sha256[:12]}.patch"


def _files(project: Project, definition: str, pins: Pins) -> Iterator[tuple[Path, PullPin]]:
    for name, pin in sorted(pins.sources.items()):
        for pull in pin.pulls if isinstance(pin, GitPin) else ():
            yield patch_file(project, definition, name, pull), pull


def _read(project: Project, path: Path, pull: PullPin) -> bytes:
    file = project.relative(path)
    try:
        content = files.read_plain_file(below_project(project.root, path).resolve(), _LARGEST)
    except OSError as error:
        raise LockError(
            f"{file}, the vendored patch of pull request {pull.number}, cannot be read: {error.strerror}",
            hint="take it back with git, or `--update` its source to vendor the pull request as it is now",
        ) from None
    if hashlib.sha256(content).hexdigest() != pull.sha256:
        raise LockError(
            f"{file} was edited: it is not the patch of pull request {pull.number} that images.lock pins",
            hint=f"take it back: `git checkout -- {file}`",
        )
    return content


_HINT = "take the file back with git, or `--update` its source to vendor the pull request as it is now"


def refetch_pull(
    project: Project, definition: ImageDefinition, pins: Pins, fresh: Mapping[str, bytes], report: Report
) -> dict[str, bytes]:
    """The patches in ``pins`` that neither the project nor ``fresh`` has, by SHA-256, as their repositories give them.
    Raises LockError where one cannot be had any more, or is another one now."""
    from builder.sources.pulls import EarlierPatch

    fetched: dict[str, bytes] = {}
    for name, pin in pins.sources.items():
        if not isinstance(pin, GitPin) or name not in definition.git_sources:
            continue
        missing = {
            pull.sha256
            for pull in pin.pulls
            if pull.sha256 not in fresh and not patch_file(project, definition.name, name, pull).exists()
        }
        earlier: list[EarlierPatch] = []  # each applies after those before it, which are needed to make it
        for pull in pin.pulls if missing else ():
            if pull.sha256 in missing:
                url = definition.git_sources[name].git
                diff = fetched[pull.sha256] = _fetch(project, url, pin, pull, tuple(earlier), report)
            else:
                alone = Pins(sources={name: replace(pin, pulls=(pull,))})
                diff = load_vendored(project, definition.name, alone, fresh)[pull.sha256]
            earlier.append(EarlierPatch(f"pull request {pull.number}", diff, pull.head))
    return fetched


def _fetch(
    project: Project, url: str, pin: GitPin, pull: PullPin, earlier: tuple[EarlierPatch, ...], report: Report
) -> bytes:
    """The patch of a pull request at its pinned head. Raises LockError."""
    from builder.sources import pulls

    name = f"pull request {pull.number} of {pin.git} at {pull.head[:12]}"

    def notify(text: str) -> None:
        report(Message(text))

    notify(f"the project does not have the patch of {name}: it is fetched from there")
    requested = pulls.RequestedPull(pull.number, pull.base)
    try:
        vendor = pulls.vendor(project.mirrors, url, requested, pin.commit, earlier, notify, pull.head)
    except SourceError as error:
        raise LockError(
            f"the project does not have the patch of {name}, and it cannot be fetched: {error.message}", hint=_HINT
        ) from None
    if vendor.pin.sha256 != pull.sha256:
        raise LockError(
            f"{name} gives another patch now, of SHA-256 {vendor.pin.sha256[:12]}, and {pull.sha256[:12]} is pinned",
            hint=_HINT,
        )
    notify(f"{name} gives the patch that is pinned: its SHA-256 is {pull.sha256[:12]}…")
    return vendor.diff

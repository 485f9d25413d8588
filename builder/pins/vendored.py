"""The patches of sources are files. The patches of pull requests are beside the definition, named after their content.

A project may be published without the patches of others: the second part fetches missing patches again, and
images.lock has their digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import files
from builder.base.errors import LockError, SourceError
from builder.base.events import Message, Report
from builder.base.project import Project, below_project
from builder.base.words import shell_word
from builder.definitions.source_patches import LARGEST_PATCH, LOCAL_CHANGES, SourcePatch
from builder.lock.model import GitPin, Pins
from builder.sources import foreign_files

if TYPE_CHECKING:
    from builder.definitions.image import ImageDefinition
    from builder.sources.pulls import Vendored


def load_vendored(project: Project, definition: str, pins: Pins, fresh: Mapping[str, bytes]) -> dict[str, bytes]:
    """The diff of every patch in ``pins`` by its SHA-256. ``fresh`` patches are not on the disk yet. Raises the errors
    of `patch_content`."""
    return {
        patch.sha256: patch_content(project, definition, source, patch, fresh) for source, patch in _patches_of(pins)
    }


def patch_content(
    project: Project, definition: str, source: str, patch: SourcePatch, fresh: Mapping[str, bytes]
) -> bytes:
    """The diff of one patch of ``source``. Raises LockError if its file is missing or was edited."""
    if patch.sha256 in fresh:
        return fresh[patch.sha256]
    path = patch_file(project, definition, source, patch)
    file = project.relative(path)
    try:
        content = files.read_plain_file(below_project(project.root, path).resolve(), LARGEST_PATCH)
    except OSError as error:
        hint = f"restore the file with git{'; a build fetches a missing one again' if patch.is_pull else ''}"
        raise LockError(f"{file}, {_kind(patch)}, cannot be read: {error.strerror}", hint=hint) from None
    if hashlib.sha256(content).hexdigest() != patch.sha256:
        message = f"{file} was edited and no longer matches {_kind(patch)} pinned in images.lock"
        pins = f"; to pin the edited patch: `builder lock {definition}`" if patch.is_file else ""
        raise LockError(message, hint=f"restore it: `git checkout HEAD -- {shell_word(file)}`{pins}")
    return content


def vendored_faults(project: Project, definition: str, pins: Pins) -> Iterator[LockError]:
    for source, patch in _patches_of(pins):
        try:
            if patch.name != LOCAL_CHANGES:
                patch_content(project, definition, source, patch, {})
        except LockError as error:
            yield error


def keep_vendored(project: Project, definition: str, pins: Pins, patches: Mapping[str, bytes]) -> None:
    """Writes the diffs that are not on the disk yet. Called before images.lock names them. The patch files of the
    definition are the user's: they are never written."""
    for source, patch in _patches_of(pins):
        path = patch_file(project, definition, source, patch)
        if patch.is_file:
            continue
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != patch.sha256:
            files.make_folder(path.parent)
            files.write_atomically(path, patches[patch.sha256])


def patch_file(project: Project, definition: str, source: str, patch: SourcePatch) -> Path:
    """The file of a patch of ``source``. The changes of a checkout are in the state folder: others do not need
    them."""
    if patch.name == LOCAL_CHANGES:
        return project.downloads / patch.sha256
    folder = project.dockerfiles / definition
    return folder / (patch.name if patch.is_file else f"pulls/{source}-{patch.stem}-{patch.sha256[:12]}.patch")


def _patches_of(pins: Pins) -> Iterator[tuple[str, SourcePatch]]:
    for name, pin in sorted(pins.sources.items()):
        for patch in pin.patches if isinstance(pin, GitPin) else ():
            yield name, patch


def _kind(patch: SourcePatch) -> str:
    return f"the vendored patch of {patch.label}" if patch.is_pull else f"the {patch.label}"


def refetch_pull(
    project: Project, definition: ImageDefinition, pins: Pins, fresh: Mapping[str, bytes], report: Report
) -> dict[str, bytes]:
    """Fetches the diffs in ``pins`` that neither the project nor ``fresh`` has, from their repositories or checkouts.
    Returns them by SHA-256. Raises LockError if a diff is gone or has changed."""
    fetched: dict[str, bytes] = {}
    for name, pin in pins.sources.items():
        if not isinstance(pin, GitPin) or name not in definition.git_sources:
            continue
        source = definition.git_sources[name]
        missing = {
            patch.sha256
            for patch in pin.patches
            if patch.sha256 not in fresh and not patch_file(project, definition.name, name, patch).exists()
        }
        earlier: list[Vendored] = []  # each patch applies after the earlier patches, which are therefore required
        for patch in pin.patches if missing else ():
            if patch.sha256 in missing and source.checkout and patch.name == LOCAL_CHANGES:
                diff = foreign_files.read_checkout(source.checkout)[1]
                if hashlib.sha256(diff).hexdigest() != patch.sha256:
                    raise LockError(f"{source.checkout} changed during this command", hint="run the command again")
                fetched[patch.sha256] = diff
            elif patch.sha256 in missing and patch.is_pull:
                moves = f"`builder lock {definition.name} --update {name}`"
                hint = f"restore the file with git, or move {name} and its pull requests: {moves}"
                fetched[patch.sha256] = _fetch(project, source.git, pin, patch, tuple(earlier), report, hint)
            earlier.append((patch, patch_content(project, definition.name, name, patch, {**fresh, **fetched})))
    return fetched


def _fetch(
    project: Project, url: str, pin: GitPin, pull: SourcePatch, earlier: tuple[Vendored, ...], report: Report, hint: str
) -> bytes:
    """The patch of a pull request at its pinned head. Raises LockError with ``hint``."""
    from builder.sources import mirror, pulls

    name = f"pull request {pull.number} of {pull.repository or pin.git} at {pull.head[:12]}"

    def notify(text: str) -> None:
        report(Message(text))

    notify(f"the project does not have the patch of {name}; fetching it")
    try:
        now, diff = pulls.vendor(mirror.locate(project.mirrors, url, notify), pull, pin.commit, earlier)
    except SourceError as error:
        message = f"the project does not have the patch of {name}, and it cannot be fetched: {error.message}"
        raise LockError(message, hint=hint) from None
    if now.sha256 != pull.sha256:
        raise LockError(
            f"{name} now gives a different patch, with SHA-256 {now.sha256[:12]}, but {pull.sha256[:12]} is pinned",
            hint=hint,
        )
    notify(f"{name} still gives the pinned patch: its SHA-256 is {pull.sha256[:12]}…")
    return diff

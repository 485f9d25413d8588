"""Patches of pinned pull requests that the project does not have, fetched once more and compared with their SHA-256.

A project may be published without the texts of others: images.lock says what they have to be.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.errors import LockError, SourceError
from builder.events import Message
from builder.lock.pins import GitPin, Pins
from builder.pinning import vendored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.image import ImageDefinition
    from builder.events import Report
    from builder.lock.pins import PullPin
    from builder.project import Project
    from builder.sources.git.pull_merge import EarlierPatch

_HINT = "take the file back with git, or `--update` its source to vendor the pull request as it is now"


def fetch(
    project: Project, definition: ImageDefinition, pins: Pins, fresh: Mapping[str, bytes], report: Report
) -> dict[str, bytes]:
    """The patches in ``pins`` that neither the project nor ``fresh`` has, by SHA-256, as their repositories give them.

    Raises LockError where one cannot be had any more, or is another one now.
    """
    fetched: dict[str, bytes] = {}
    for name, pin in pins.sources.items():
        if not isinstance(pin, GitPin) or name not in definition.git_sources:
            continue
        if any(_is_wanted(project, definition, name, pull, fresh) for pull in pin.pulls):
            url = definition.git_sources[name].git
            fetched |= _of_source(project, definition, name, pin, url, {**fresh, **fetched}, report)
    return fetched


def _is_wanted(
    project: Project, definition: ImageDefinition, source: str, pull: PullPin, fresh: Mapping[str, bytes]
) -> bool:
    return pull.sha256 not in fresh and vendored.is_missing(project, definition.name, source, pull)


def _of_source(
    project: Project,
    definition: ImageDefinition,
    name: str,
    pin: GitPin,
    url: str,
    fresh: Mapping[str, bytes],
    report: Report,
) -> dict[str, bytes]:
    """The missing patches of one source. Each applies after those before it, which are needed to make it."""
    from builder.sources.git.pull_merge import EarlierPatch

    earlier: list[EarlierPatch] = []
    fetched: dict[str, bytes] = {}
    for pull in pin.pulls:
        if _is_wanted(project, definition, name, pull, fresh):
            diff = fetched[pull.sha256] = _again(pull, pin, url, project, tuple(earlier), report)
        else:
            alone = Pins(sources={name: replace(pin, pulls=(pull,))})
            diff = vendored.load(project, definition.name, alone, fresh)[pull.sha256]
        earlier.append(EarlierPatch(f"pull request {pull.number}", diff, pull.head))
    return fetched


def _again(
    pull: PullPin, pin: GitPin, url: str, project: Project, earlier: tuple[EarlierPatch, ...], report: Report
) -> bytes:
    """The patch of a pull request at its pinned head. Raises LockError."""
    from builder.sources.git import pull_requests
    from builder.sources.git.pull_history import RequestedPull

    name = f"pull request {pull.number} of {pin.git} at {pull.head[:12]}"
    requested = RequestedPull(pull.number, pull.base)

    def notify(text: str) -> None:
        report(Message(text))

    notify(f"the project does not have the patch of {name}: it is fetched from there")
    try:
        vendor = pull_requests.vendor(project.mirrors, url, requested, pin.commit, earlier, notify, pull.head)
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

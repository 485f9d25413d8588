"""Differences between the contents of two images, as plain data, the likeliest culprits first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.comparing.contents import ImageContents
    from builder.lock.model import Version

Kind = Literal["added", "removed", "changed"]
PackageKind = Literal["down", "up", "in", "out", "other files"]
_ORDER: tuple[PackageKind, ...] = ("down", "up", "in", "out", "other files")


@dataclass(frozen=True)
class ValueChange:
    """A named value that differs; None on the side that lacks it."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class SourceChange:
    """A source that moved. ``git`` is its address; empty if neither side was taken from git."""

    name: str
    before: Version | None
    after: Version | None
    git: str


@dataclass(frozen=True)
class PullChange:
    """A pull request that was added, removed or vendored again; the SHA-256 of its vendored patch on either side."""

    source: str
    number: int
    kind: Kind
    before: str | None
    after: str | None


@dataclass(frozen=True)
class PackageChange:
    """A Python package that differs; ``other files`` is the same version with other hashes."""

    name: str
    kind: PackageKind
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Changes:
    """All differences, except those that only the files of a build directory show."""

    sources: tuple[SourceChange, ...]
    pulls: tuple[PullChange, ...]
    packages: tuple[PackageChange, ...]
    build_packages: tuple[PackageChange, ...]
    base: ValueChange | None

    def __bool__(self) -> bool:
        return bool(self.sources or self.pulls or self.packages or self.build_packages or self.base)


def between(before: ImageContents, after: ImageContents) -> Changes:
    """Returns the differences between the contents of two images."""
    return Changes(
        sources=tuple(_sources(before, after)),
        pulls=tuple(_pulls(before, after)),
        packages=_packages(before.packages, after.packages),
        build_packages=_packages(before.build, after.build),
        base=next(values({"base": before.base}, {"base": after.base}), None),
    )


def values(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[ValueChange]:
    """Yields the values that differ, sorted by name."""
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name) or None, after.get(name) or None
        if old != new:
            yield ValueChange(name, old, new)


def kind_of(before: object, after: object) -> Kind:
    """Returns the kind of a change between two values, of which the one that is missing is None."""
    return "added" if before is None else "removed" if after is None else "changed"


def _sources(before: ImageContents, after: ImageContents) -> Iterator[SourceChange]:
    # vLLM before FlashInfer: it changes most, and breaks most.
    for name in sorted(before.sources.keys() | after.sources.keys(), reverse=True):
        old, new = before.sources.get(name), after.sources.get(name)
        if old != new:
            yield SourceChange(name, old, new, after.git.get(name) or before.git.get(name, ""))


def _pulls(before: ImageContents, after: ImageContents) -> Iterator[PullChange]:
    for pull in sorted(before.pulls.keys() | after.pulls.keys()):
        old, new = before.pulls.get(pull), after.pulls.get(pull)
        if old != new:
            yield PullChange(pull.source, pull.number, kind_of(old, new), old, new)


def _packages(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[PackageChange, ...]:
    changes = []
    for change in values(before, after):
        old, new = (identity.partition(" ")[0] if identity else None for identity in (change.before, change.after))
        changes.append(PackageChange(change.name, _direction(old, new), old, new))
    return tuple(sorted(changes, key=lambda change: (_ORDER.index(change.kind), change.name)))


def _direction(old: str | None, new: str | None) -> PackageKind:
    from packaging.version import InvalidVersion, Version

    if old is None or new is None:
        return "in" if old is None else "out"
    if old == new:
        return "other files"
    try:
        return "up" if Version(old) < Version(new) else "down"
    except InvalidVersion:
        return "up" if old < new else "down"

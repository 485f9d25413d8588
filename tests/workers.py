"""The groups of tests that pytest-xdist must run in the same process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from xdist.scheduler import LoadScopeScheduling

from tests import shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest


def group(item: pytest.Item) -> str:
    """The group of a test. The tests of a file are a group, because they may share resources. Other groups are all
    tests that need the cpu image, all tests that serve the same stand-in, and all tests that need the engine alone.
    Each test with its own scenario is a separate group."""
    if item.get_closest_marker("image"):
        return "cpu image"
    if item.get_closest_marker("alone"):
        return "alone"
    if "scenario" in getattr(item, "fixturenames", ()):
        return item.nodeid
    return "served" if "kitchen" in getattr(item, "fixturenames", ()) else str(item.path)


def publish(items: Sequence[pytest.Item]) -> None:
    """Gives the groups of the tests that a worker collected to the controller, which collects no tests itself."""
    shared.once("groups", lambda: json.dumps({item.nodeid: group(item) for item in items}))


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Gives each worker a group of tests at a time, in the order in which they were collected.

    This replaces pytest-xdist's own marker for groups, which has no effect since pytest 9.1: the marker renames tests
    by an attribute that pytest no longer reads (pytest-xdist 3.8.0, remote.py).
    """

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._groups: dict[str, str] = {}

    def _split_scope(self, nodeid: str) -> str:
        if not self._groups:
            self._groups = json.loads(shared.once("groups", lambda: "{}"))
        return self._groups[nodeid]

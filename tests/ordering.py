"""The order of the tests: first the tests of changed modules, then the tests that take longest."""

from __future__ import annotations

import random
import subprocess
from itertools import groupby
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    import pytest


# Tests with a lower sum come earlier.
_PLACES = {"image": -1.0, "engine": -1.0, "alone": 0.5, "slow": -0.25}


def changed(clone: Path) -> frozenset[PurePath]:
    """The paths, relative to the clone, of files that differ from the last commit. Empty if git fails."""
    argv = ["git", "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all"]
    done = subprocess.run(argv, cwd=clone, capture_output=True, text=True)
    return frozenset(PurePath(entry[3:]) for entry in done.stdout.split("\0") if entry)


def distance(test: PurePath, files: Collection[PurePath]) -> int:
    """0 if the test file or its module was changed, 1 if another file of its package was changed, otherwise 2. Paths
    are relative to the clone: ``tests/plan/test_making.py`` tests ``builder/plan/making.py``."""
    inside = PurePath(*test.parts[1:])
    module = PurePath("builder", inside.with_name(inside.name.removeprefix("test_")))
    if test in files or module in files:
        return 0
    return 1 if any(file.parent in (test.parent, module.parent) for file in files) else 2


def key(clone: Path, files: Collection[PurePath]) -> Callable[[pytest.Item], tuple[int, float]]:
    """The sort key of tests. Tests with an engine, and above all with a large image, take longest. They come early, so
    that no worker ends long after the others. Tests that need the engine alone come after the other tests with an
    engine: the other workers then run tests without an engine, first those that take more than a moment."""

    def of(item: pytest.Item) -> tuple[int, float]:
        marks = {mark.name for mark in item.iter_markers()}
        inside = item.path.relative_to(clone) if item.path.is_relative_to(clone) else item.path
        return distance(inside, files), sum(place for mark, place in _PLACES.items() if mark in marks)

    return of


def shuffled(items: Iterable[pytest.Item], group: Callable[[pytest.Item], str], seed: str) -> list[pytest.Item]:
    """The tests in a random order by ``seed``: the groups are shuffled, and the tests in each group."""
    draw = random.Random(seed)  # noqa: S311  # an order, no secret
    groups = [list(each) for _, each in groupby(sorted(items, key=group), group)]
    draw.shuffle(groups)
    for each in groups:
        draw.shuffle(each)
    return [item for each in groups for item in each]

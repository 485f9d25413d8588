"""The order in which tests run: first those of what is being changed, then those that take longest."""

from __future__ import annotations

import random
import subprocess
from itertools import groupby
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    import pytest


def changed(clone: Path) -> frozenset[PurePath]:
    """The files of the clone that differ from the last commit, by their paths in it; none where git cannot tell."""
    argv = ["git", "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all"]
    done = subprocess.run(argv, cwd=clone, capture_output=True, text=True)
    return frozenset(PurePath(entry[3:]) for entry in done.stdout.split("\0") if entry)


def distance(test: PurePath, files: Collection[PurePath]) -> int:
    """0 for a test file that was changed or whose module was, 1 where another of its package was, 2 for others. Paths
    are those in the clone: ``tests/plan/test_making.py`` tests ``builder/plan/making.py``."""
    inside = PurePath(*test.parts[1:])
    module = PurePath("builder", inside.with_name(inside.name.removeprefix("test_")))
    if test in files or module in files:
        return 0
    return 1 if any(file.parent in (test.parent, module.parent) for file in files) else 2


def key(clone: Path, files: Collection[PurePath]) -> Callable[[pytest.Item], tuple[int, float]]:
    """The key to sort tests by. What needs an engine takes longest, and a large image most of all: it comes early, so
    that no worker ends long after the others. Tests that need the engine for themselves come after the others that need
    it: the other workers then have tests without an engine."""

    def of(item: pytest.Item) -> tuple[int, float]:
        marks = {mark.name for mark in item.iter_markers()}
        inside = item.path.relative_to(clone) if item.path.is_relative_to(clone) else item.path
        return distance(inside, files), len(marks & {"alone"}) / 2 - len(marks & {"engine", "image"})

    return of


def shuffled(items: Iterable[pytest.Item], group: Callable[[pytest.Item], str], seed: str) -> list[pytest.Item]:
    """The tests in an order that ``seed`` gives: the groups, and in each its tests."""
    draw = random.Random(seed)  # noqa: S311  # an order, no secret
    groups = [list(each) for _, each in groupby(sorted(items, key=group), group)]
    draw.shuffle(groups)
    for each in groups:
        draw.shuffle(each)
    return [item for each in groups for item in each]

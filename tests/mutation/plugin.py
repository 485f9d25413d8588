"""A plugin of pytest for the runs of `tests.mutation`. It notes what each test reaches and how long it takes, or runs a
choice of tests in a given order and notes which one failed.

``BUILDER_MUTATION_NOTES`` names the file with a line of JSON for each test, ``BUILDER_MUTATION_TESTS`` a file with the
tests to run, in their order. Which lines a test reaches is measured where coverage runs: `reach` starts it.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import coverage
import pytest

from tests import program

NOTES = "BUILDER_MUTATION_NOTES"
TESTS = "BUILDER_MUTATION_TESTS"
CONTEXT = "BUILDER_MUTATION_CONTEXT"  # the test that runs, for the processes that it starts

_seconds: dict[str, float] = {}
_failed: set[str] = set()


def context(test: str) -> str:
    """The name of a test in the measured data: its own may be long, and contain anything."""
    return hashlib.sha256(test.encode()).hexdigest()[:16]


def pytest_configure() -> None:
    if coverage.Coverage.current() is not None:
        # A fork of one process that serves all tests would be measured as part of the first of them.
        program.run = _run_from_the_start


def _run_from_the_start(argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    if "input" not in options:
        options["stdin"] = subprocess.DEVNULL
    return subprocess.run(argv, capture_output=True, text=True, **options)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> Iterator[None]:
    yield  # what others sort by is of no use here
    if TESTS in os.environ:
        place = {test: at for at, test in enumerate(Path(os.environ[TESTS]).read_text().splitlines())}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in place])
        items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    os.environ[CONTEXT] = context(item.nodeid)
    if (measuring := coverage.Coverage.current()) is not None:
        measuring.switch_context(context(item.nodeid))
    try:
        return (yield)
    finally:
        os.environ[CONTEXT] = ""
        if measuring is not None:
            measuring.switch_context("")
        _note(item)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if report.outcome != "passed":
        _failed.add(report.nodeid)


def _note(item: pytest.Item) -> None:
    marks = sorted({mark.name for mark in item.iter_markers()} & {"engine", "alone", "slow", "image", "long", "full"})
    entry = {
        "test": item.nodeid,
        "seconds": round(_seconds.get(item.nodeid, 0.0), 4),
        "passed": item.nodeid not in _failed,
        "marks": marks,
    }
    with Path(os.environ[NOTES]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")

"""A bisection taken from a log: its answers count, and it goes on from there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.bisecting import journal
from builder.commands import bisect
from builder.commands.bisect_parts import judging, serving
from builder.commands.shared import beside
from builder.errors import ConflictError, FileProblemsError, Location, Problem
from builder.lock import reading
from builder.lock.model import ImageName
from builder.storage import regular_file

if TYPE_CHECKING:
    from pathlib import Path

    from builder.commands.bisect_parts.report import BisectReport
    from builder.workspace import Workspace

_LARGEST = 64 << 20


def run(workspace: Workspace, file: Path) -> BisectReport:
    """Goes on with the bisection in ``file``, which `bisect log` printed. Raises FileProblemsError where it is none of
    this project, ConflictError where one is under way."""
    project = workspace.project
    try:
        bisection = journal.parse(regular_file.read(file, _LARGEST).decode())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        problem = Problem(Location(str(file)), "not a log that `builder bisect log` printed")
        raise FileProblemsError((problem,)) from None
    lock = reading.of(project)
    names = [ImageName(bisection.repository, number) for number in bisection.numbers]
    if missing := [str(name) for name in names if lock.image(name) is None]:
        raise FileProblemsError((Problem(Location(str(file)), f"images.lock has no {', '.join(missing)}"),))
    judging.require_script(bisection.judge)
    with journal.locked(project):
        if journal.read(project):
            raise ConflictError("a bisection is under way", hint="`builder bisect stop` ends it")
        server = None
        if bisection.recipe:
            server = beside.server_of(workspace, serving.recipe_of(workspace, bisection))
        bisection = replace(
            bisection,
            waiting=None,
            served=beside.kept_labels(server),
            serving=server.image if server else "",
        )
        journal.write(project, bisection)
        return bisect.go_on(workspace, bisection)

"""The context of a command: one value instead of four that every function would pass on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from builder.base.values import dataclass

if TYPE_CHECKING:
    from builder.base.events import Report
    from builder.base.project import Project
    from builder.engine.client import Endpoint


@dataclass(frozen=True)
class Workspace:
    """The context of a command: a project, the engine with its images, the user's environment variables, and
    ``report``, which receives events. ``engine/``, ``plan/`` and ``lock/`` take only the parts that they need."""

    project: Project
    engine: Endpoint
    environment: Mapping[str, str]
    report: Report

    def report_waiting(self) -> None:
        from builder.base.events import WAITING

        self.report(WAITING)


def open_workspace(project: Project, environ: Mapping[str, str], report: Report) -> Workspace:
    """The workspace of a project, with the engine that the environment selects. This does not contact the engine yet.
    Raises EngineError for a docker context that does not exist."""
    from builder.engine import client

    reported: set[object] = set()

    def report_once(event: object) -> None:
        from builder.base.events import Fact

        if isinstance(event, Fact):
            if event in reported:
                return
            reported.add(event)
        report(event)

    return Workspace(project, client.find_endpoint(environ), environ, report_once)

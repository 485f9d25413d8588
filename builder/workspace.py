"""The context of a command: one value in place of four that every function would hand on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.events import WAITING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.engine.client.endpoint import Endpoint
    from builder.events import Report
    from builder.project import Project


@dataclass(frozen=True)
class Workspace:
    """A project, the engine that its images are in, the environment variables of the user, and the ``report`` that
    takes what happens meanwhile. ``engine/``, ``plan/`` and ``lock/`` take the parts that they need instead."""

    project: Project
    engine: Endpoint
    environment: Mapping[str, str]
    report: Report

    def report_waiting(self) -> None:
        """Tells that another process is writing images.lock."""
        self.report(WAITING)

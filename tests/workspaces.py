"""Workspaces for tests that call the function of a command instead of the command line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from builder.base.events import Report, ignore
from builder.base.project import Project
from builder.engine.client import Endpoint
from builder.numbers.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Mapping


NO_ENGINE = Endpoint("unix:///nowhere/docker.sock", ("docker", "buildx"), "a test that needs none")


def workspace(
    project: Project, engine: Endpoint, environ: Mapping[str, str] = os.environ, report: Report = ignore
) -> Workspace:
    return Workspace(project, engine, environ, report)

"""The context of every command: its project, found when it is first needed, and its workspace."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from builder.cli import output

if TYPE_CHECKING:
    from pathlib import Path

    from builder.events import Report
    from builder.project import Project
    from builder.workspace import Workspace


@dataclass(frozen=True)
class Context:
    """The context of a command. ``start`` is the folder where the search for the project begins."""

    start: Path

    @functools.cached_property
    def project(self) -> Project:
        from builder import project

        return project.find(self.start)

    def workspace(self, report: Report = output.print_message) -> Workspace:
        """The workspace of a command whose events go to ``report``, which by default prints its messages."""
        from builder import workspace

        return workspace.open_workspace(self.project, os.environ, report)


pass_context = click.make_pass_decorator(Context)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")

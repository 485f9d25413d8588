"""Probes check a served model, either built in or a project's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.definitions import configuration
from builder.lab.measure import own_script, tools_long

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.base.events import Report
    from builder.base.project import Project
    from builder.lab.measure.outcome import Outcome
    from builder.lab.measure.served_model import ServedModel


def names(project: Project) -> tuple[str, ...]:
    """The names of all probes of a project; its own do not replace `tools-long`."""
    return tuple(dict.fromkeys((tools_long.NAME, *configuration.probe_names(project))))


def require(project: Project, name: str) -> None:
    """Raises UsageError where there is no such probe, FileProblemsError for a bad one."""
    if name != tools_long.NAME:
        configuration.load_probe(project, name)


def run_probe(project: Project, served: ServedModel, name: str, environ: Mapping[str, str], report: Report) -> Outcome:
    """Runs a probe against a served model. Raises as `require`, and MeasuringError where it cannot take place."""
    if name == tools_long.NAME:
        return tools_long.run_tools_long(served, report)
    return own_script.run_own_probe(served, configuration.load_probe(project, name), environ, report)

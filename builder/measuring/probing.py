"""The probes by name: `tools-long`, and a project's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.definitions import own_probe
from builder.measuring import own_script, tools_long

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.events import Report
    from builder.measuring.outcome import Outcome
    from builder.measuring.served_model import ServedModel
    from builder.project import Project


def names(project: Project) -> tuple[str, ...]:
    """The names of all probes that a project can run; its own do not replace `tools-long`."""
    return tuple(dict.fromkeys((tools_long.NAME, *own_probe.names(project))))


def require(project: Project, name: str) -> None:
    """Raises UsageError where there is no such probe, FileProblemsError for a bad one."""
    if name != tools_long.NAME:
        own_probe.load(project, name)


def digest(project: Project, name: str) -> str:
    """The digest of a probe as it is now: with another one its results are stale. Raises as `require`."""
    return tools_long.digest() if name == tools_long.NAME else own_probe.load(project, name).digest


def probe(project: Project, served: ServedModel, name: str, environ: Mapping[str, str], report: Report) -> Outcome:
    """Runs a probe against a served model. A server or a script that goes wrong is a result. Raises as `require`, and
    MeasuringError where the probe cannot take place."""
    if name == tools_long.NAME:
        return tools_long.probe(served, report)
    return own_script.probe(served, own_probe.load(project, name), environ, report)

"""The probes by name: those built in, and a project's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.definitions import own_probe
from builder.measuring import canitoolcall, own_script, tools_long

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.events import Report
    from builder.measuring.outcome import Outcome
    from builder.measuring.served_model import ServedModel
    from builder.project import Project

BUILT_IN = (tools_long.NAME, canitoolcall.NAME)


def names(project: Project) -> tuple[str, ...]:
    """The names of all probes that a project can run; its own do not replace those built in."""
    return tuple(dict.fromkeys((*BUILT_IN, *own_probe.names(project))))


def defaults(project: Project) -> tuple[str, ...]:
    """The names of the probes that run where none is named: tool calls, and the project's own."""
    return tuple(name for name in names(project) if name != canitoolcall.NAME)


def require(project: Project, name: str) -> None:
    """Raises UsageError where there is no such probe, FileProblemsError for a bad one."""
    if name not in BUILT_IN:
        own_probe.load(project, name)


def digest(project: Project, name: str) -> str:
    """The digest of a probe as it is now: with another one its results are stale. Raises as `require`."""
    if name == tools_long.NAME:
        return tools_long.digest()
    return canitoolcall.digest() if name == canitoolcall.NAME else own_probe.load(project, name).digest


def probe(project: Project, served: ServedModel, name: str, environ: Mapping[str, str], report: Report) -> Outcome:
    """Runs a probe against a served model. A server or a script that goes wrong is a result. Raises as `require`, and
    MeasuringError where the probe cannot take place."""
    if name == tools_long.NAME:
        return tools_long.probe(served, report)
    if name == canitoolcall.NAME:
        return canitoolcall.probe(served, environ, report)
    return own_script.probe(served, own_probe.load(project, name), environ, report)

"""The first answer of a new image: the probes that its model requires, taken before it counts as one that serves.

Only those are taken that nothing recorded shows as passed: what went through `upgrade` is served at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import MeasuringError
from builder.events import Message
from builder.evidence import requirements
from builder.lock import reading

if TYPE_CHECKING:
    from builder.serving.image_selection import SelectedImage
    from builder.serving.running import RunningServer
    from builder.workspace import Workspace


def failed_probe(workspace: Workspace, served: SelectedImage, server: RunningServer) -> str:
    """Takes each required probe that has not passed on this image, and keeps the result; returns why the first one
    failed, and nothing where none did. One that cannot take place decides nothing."""
    project, model = workspace.project, served.recipe.model
    lock = reading.of(project)
    lacking = requirements.missing(
        project, lock, served.image, model, recipe=served.recipe, environ=workspace.environment
    )
    names = [each.name for each in lacking if each.kind == "probe"]
    if not names:
        return ""
    from builder.measuring import measured_server, probing

    try:
        measured = measured_server.of(server)
        for name in names:
            probing.require(project, name)
            workspace.report(Message(f"{served.image} is new: taking the probe {name}, which {model} requires"))
            outcome = probing.probe(project, measured.model, name, workspace.environment, workspace.report)
            measured_server.keep(workspace, measured, outcome)
            if outcome.verdict == "fail":
                return f"{server.name} answers, and fails the probe {name}"
    except MeasuringError as error:
        workspace.report(Message(error.message))
    return ""

"""A server that is measured: the container that answers, the model it serves, and what a result belongs to."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.definitions.recipes import finding
from builder.definitions.recipes import recipe as recipes
from builder.definitions.recipes.container import LABEL
from builder.engine import services
from builder.errors import BuilderError, ConflictError, MeasuringError
from builder.evidence import store, subjects
from builder.lock import name_kinds, reading
from builder.lock.model import ImageName
from builder.measuring import api_key, machine, served_model
from builder.serving.running import REQUEST, answers

if TYPE_CHECKING:
    from pathlib import Path

    from builder.definitions.recipes.recipe import Recipe
    from builder.evidence.record import Kind, Subject
    from builder.measuring.outcome import Outcome
    from builder.measuring.served_model import ServedModel
    from builder.project import Project
    from builder.serving.running import RunningServer
    from builder.workspace import Workspace

_LONGEST = 4000  # characters of a value in evidence


@dataclass(frozen=True)
class MeasuredServer:
    """A server that answers, and its model. ``image`` is its number; None of an image that has none, whose results
    cannot be kept."""

    running: RunningServer
    model: ServedModel
    image: ImageName | None


def of(server: RunningServer) -> MeasuredServer:
    """The running server, to be measured. Raises MeasuringError where it does not answer."""
    if not server.address or not answers(server):
        raise MeasuringError(
            f"{server.name} is up and does not answer", hint=f"`builder logs {server.name}` may say why"
        )
    repository, _, number = server.image.rpartition(":")
    is_numbered = number.isdecimal() and name_kinds.is_a(name_kinds.REPOSITORY, repository)
    image = ImageName(repository, int(number)) if is_numbered else None
    return MeasuredServer(server, served_model.look(server.address, api_key.of(server)), image)


def subject(workspace: Workspace, measured: MeasuredServer, kind: Kind) -> Subject | None:
    """The subject of a run of this kind on the server; None of an image without a number."""
    lock = reading.of(workspace.project)
    if measured.image is None or lock.image(measured.image) is None:
        return None
    server = measured.running
    present = subjects.present(
        workspace.project,
        lock,
        measured.image,
        server.model or None,
        kind,
        recipe=_recipe(workspace.project, server),
        environ=workspace.environment,
        overrides=_overrides(server),
    )
    return replace(present, machine=machine.look(server.head.engine.endpoint, server.image))


def keep(workspace: Workspace, measured: MeasuredServer, outcome: Outcome) -> Path | None:
    """Writes the outcome to the evidence of the server's number, and returns the file; None where the image has no
    number. Raises ConflictError where the server was stopped meanwhile, which says nothing of its image, OSError,
    UnsafePathError."""
    if outcome.verdict != "pass" and _was_stopped(measured.running):
        raise ConflictError(f"{measured.running.name} was stopped from outside while it was measured: nothing is kept")
    belongs_to = subject(workspace, measured, outcome.kind)
    if measured.image is None or belongs_to is None:
        return None
    return store.add(workspace.project, measured.image, outcome.evidence(belongs_to), outcome.raw or None)


def _was_stopped(server: RunningServer) -> bool:
    """True if a container is gone: one that ends by itself is still there."""
    return any(services.find(member.engine.endpoint, member.service.id) is None for member in server.members)


def _recipe(project: Project, server: RunningServer) -> Recipe | None:
    """The recipe that the server was started by, as far as it is still there."""
    file = server.labels.get(f"{LABEL}.recipe", "")
    try:
        path = finding.recorded(project, file)
        return recipes.load(project, path) if path else None
    except BuilderError:
        return None


def _overrides(server: RunningServer) -> dict[str, str]:
    """The settings of that start alone, from the label with its request."""
    try:
        request = json.loads(server.labels.get(REQUEST, "{}"))
        values = {str(name): str(value) for name, value in request.get("overrides", {}).items()}
        extra = api_key.without([str(word) for word in request.get("extra", [])])
    except (ValueError, AttributeError, TypeError):
        return {}
    every = {**values, **({"--": " ".join(extra)} if extra else {})}
    return {name: value[:_LONGEST] for name, value in every.items()}

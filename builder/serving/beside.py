"""A candidate's server: under a name and on a port of its own, so that nobody takes it for the model's.

What is measured of it belongs to the recipe all the same: the command is the recipe's but for the port, and no setting
of that start is recorded as the user's. It ends with the machine: the engine never starts it again.
"""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.definitions.container import LABEL, STOPPING_SECONDS
from builder.engine import containers
from builder.lock.model import ImageName
from builder.serving import memory, preparation, starting
from builder.serving.running import PROJECT, REQUEST, find_all

if TYPE_CHECKING:
    from pathlib import Path

    from builder.numbers.workspace import Workspace
    from builder.serving.preparation import PlannedContainer, PreparedServer, ServeRequest
    from builder.serving.running import RunningServer
    from builder.serving.selection import ServedImage


SUFFIX = "-candidate"
_MARK = " (candidate)"


def prepare(workspace: Workspace, request: ServeRequest, image: ImageName | ServedImage) -> PreparedServer:
    """Plans the server of ``image``, a number or one that was selected with its recipe, beside that of ``request``.
    Raises what `preparation.prepare` does."""
    overrides = {**request.overrides, "port": str(_free_port())}
    container = replace(request.container, publish=())  # the ports of the machine are the model's own server's
    beside = replace(request, overrides=overrides, container=container)
    if isinstance(image, ImageName):
        prepared = preparation.prepare(workspace, replace(beside, image=image))
    else:
        prepared = preparation.prepare(workspace, beside, image)
    return replace(prepared, containers=tuple(_renamed(planned, request) for planned in prepared.containers))


def fits(prepared: PreparedServer, proc: Path = memory.PROC) -> bool:
    """True if it may run beside what is being served. A GPU with memory of its own is not looked into: there it may
    not."""
    from builder.base.errors import ConflictError

    gpus = [planned for planned in prepared.containers if planned.settings.gpus]
    if any(planned.engine.node for planned in prepared.containers):
        return False
    for planned in gpus:
        if memory.shared_with_gpu(planned.engine.endpoint, planned.settings.image, proc) is None:
            return False
    try:
        starting.require_room(prepared, (), lambda _: None, proc)
    except ConflictError:
        return False
    return True


def step_aside(server: RunningServer) -> None:
    """Stops a server in whose place a candidate runs. Its containers stay: the engine starts them again with the
    machine, if nobody has done so before."""
    for member in server.members:
        containers.halt_container(member.engine.endpoint, member.service.id, STOPPING_SECONDS)


def running(workspace: Workspace, recipe: str) -> tuple[RunningServer, ...]:
    """The servers of candidates that run by the recipe with this path."""
    mark = f"{workspace.project.root}{_MARK}"
    return tuple(
        server
        for server in find_all(workspace).servers
        if server.labels.get(PROJECT) == mark and server.labels.get(f"{LABEL}.recipe") == recipe
    )


def _renamed(planned: PlannedContainer, request: ServeRequest) -> PlannedContainer:
    settings = planned.settings
    options = {**json.loads(settings.labels[REQUEST]), "overrides": dict(request.overrides)}
    labels = {
        **settings.labels,
        LABEL: f"{settings.labels[LABEL]}{SUFFIX}",
        PROJECT: f"{settings.labels[PROJECT]}{_MARK}",
        REQUEST: json.dumps(options),
    }
    return replace(planned, settings=replace(settings, name=f"{settings.name}{SUFFIX}", labels=labels, restart="no"))


def _free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        port: int = tried.getsockname()[1]
    return port

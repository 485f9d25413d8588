"""Starting a prepared server, from exactly the image that was checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.definitions.recipes.cluster_network import RDMA_DEVICES
from builder.definitions.recipes.container import LABEL
from builder.engine import containers, services
from builder.engine.client.errors import EngineHTTPError
from builder.errors import ConflictError, ImageStateError, NoImageHelpsError, ServeFailedError, UsageError
from builder.serving import engine_request, ports
from builder.serving.running import DIGEST, RunningServer, ServerMember

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.definitions.recipes.container import ContainerSettings
    from builder.engine.services import Service
    from builder.serving.image_selection import ServedImage
    from builder.serving.preparation import PlannedContainer, PreparedServer


@dataclass(frozen=True)
class StartedServer:
    """A server that runs or starts now. ``was_running`` is True if it did before."""

    server: RunningServer
    selection: ServedImage
    was_running: bool


def start(prepared: PreparedServer, environ: Mapping[str, str]) -> StartedServer:
    """Starts the server without waiting for it to answer; does nothing if it is running already with these settings.

    Raises ConflictError if it is running with other settings, or its port or name is taken; ServeFailedError if an
    engine cannot start it. Nothing is left behind then.
    """
    environ = {**environ, **prepared.secrets}
    existing = existing_containers(prepared)
    if _is_up(prepared, existing):
        members = tuple(
            ServerMember(planned.engine, service)
            for planned, service in zip(prepared.containers, existing, strict=True)
            if service
        )
        return StartedServer(RunningServer(members), prepared.selection, was_running=True)
    require_free_port(prepared, leaving=[service.name for service in existing if service])
    for planned, service in zip(prepared.containers, existing, strict=True):
        if service:
            containers.remove(planned.engine.endpoint, service.id)
    created: list[ServerMember] = []
    try:
        for planned in prepared.containers:
            created.append(_create(planned, environ))  # noqa: PERF401  # those before a failure have to be known
        for member, planned in zip(created, prepared.containers, strict=True):
            _require_planned_image(member, planned)
        # The head node last: it waits for the others only so long, and they for it.
        for member in reversed(created):
            _start(member)
    except BaseException:
        _remove(created)
        raise
    return StartedServer(RunningServer(tuple(created)), prepared.selection, was_running=False)


def existing_containers(prepared: PreparedServer) -> tuple[Service | None, ...]:
    """The containers that the server has already, in the order of those that it needs; None for each that is missing.
    Earlier releases gave a container the server's name alone."""
    return tuple(
        services.find(planned.engine.endpoint, planned.settings.name) or _of_earlier_release(planned)
        for planned in prepared.containers
    )


def _of_earlier_release(planned: PlannedContainer) -> Service | None:
    service = services.find(planned.engine.endpoint, planned.settings.labels[LABEL])
    return service if service and LABEL in service.labels else None


def is_running(prepared: PreparedServer) -> bool:
    """True if the server is running already with these settings. Raises ConflictError as `start` does."""
    return _is_up(prepared, existing_containers(prepared))


def require_free_port(prepared: PreparedServer, leaving: Sequence[str] = ()) -> None:
    """Raises ConflictError if the port that it will answer on is in use by a container other than those ``leaving``."""
    settings = prepared.head.settings
    if port := prepared.port:
        host = None if settings.ports else settings.labels.get(f"{LABEL}.host")
        ports.require_free(prepared.head.engine.endpoint, host, int(port), leaving)


def remove(server: RunningServer) -> None:
    """Ends the server at once, and removes its containers."""
    _remove(server.members)


def _remove(members: Sequence[ServerMember]) -> None:
    for member in members:
        containers.remove(member.engine.endpoint, member.service.id)


def _is_up(prepared: PreparedServer, existing: Sequence[Service | None]) -> bool:
    """True if all containers are running as they would be started. Raises ConflictError if some run with other
    settings, or another container has the name."""
    unchanged = []
    for planned, service in zip(prepared.containers, existing, strict=True):
        if service is None:
            continue
        if LABEL not in service.labels:
            raise ConflictError(
                f"a container that is not builder's is called {service.name}",
                hint=f"`docker rm -f {service.name}` removes it, or give the recipe another name",
            )
        if service.is_up:
            unchanged.append(service.labels.get(DIGEST) == planned.settings.labels[DIGEST])
    if not all(unchanged):
        raise _conflict(prepared, existing)
    return len(unchanged) == len(prepared.containers)


def _conflict(prepared: PreparedServer, existing: Sequence[Service | None]) -> ConflictError:
    name, image = prepared.head.settings.labels[LABEL], prepared.selection.name
    now = next(service for service in existing if service and service.is_up).labels.get(f"{LABEL}.image")
    same = now == image
    how = "with other options" if same else f"from {now}, and would now be served from {image}"
    does = "applies them" if same else "changes over"
    return ConflictError(
        f"{name} is being served already, {how}", hint=f"`builder restart {name}` with these options {does}"
    )


def _create(planned: PlannedContainer, environ: Mapping[str, str]) -> ServerMember:
    if planned.engine.endpoint.host.startswith("unix://"):
        _make_folders(planned.settings)
    return ServerMember(
        planned.engine,
        services.create(
            planned.engine.endpoint, planned.settings.name, engine_request.request_body(planned.settings, environ)
        ),
    )


def _make_folders(settings: ContainerSettings) -> None:
    """Creates the mounted folders as the user; the engine would create them as root."""
    for mount in settings.mounts:
        if not mount.ours:
            continue
        try:
            Path(mount.source).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{mount.source} cannot be made, to be mounted: {error.strerror}") from None


def _require_planned_image(member: ServerMember, planned: PlannedContainer) -> None:
    if member.service.image_id != planned.image_id:
        raise ImageStateError(f"the tag {planned.settings.image} was moved in this very moment: nothing was started")


def _start(member: ServerMember) -> None:
    try:
        services.start(member.engine.endpoint, member.service.id)
    except EngineHTTPError as error:
        name = member.service.labels[LABEL]
        if "gpu" in error.explanation.casefold():  # of each release of Docker in other words
            raise NoImageHelpsError(
                f"{name} needs a GPU, and this engine can give a container none ({error.explanation})",
                hint="on a machine with an NVIDIA GPU, `builder doctor` looks for what is missing; an image for the CPU"
                " has `serve: {gpus: none}` in its image.yaml",
            ) from None
        hint = ""
        if RDMA_DEVICES in error.explanation:
            hint = "`builder nodes check` looks for the RoCE devices; `rdma: []` in builder.yaml does without them"
        raise ServeFailedError(f"{name} cannot be started: {error.explanation}", hint=hint) from None

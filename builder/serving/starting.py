"""Starting a prepared server, from exactly the image that was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.definitions.recipes.container import LABEL
from builder.engine import containers, services
from builder.engine.client.errors import EngineHTTPError
from builder.errors import ConflictError, ImageStateError, ServeFailedError, UsageError
from builder.serving import ports
from builder.serving.exports import api
from builder.serving.running import DIGEST, RunningServer, ServerMember

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.definitions.recipes.container import ContainerSettings
    from builder.engine.services import Service
    from builder.serving.image_selection import SelectedImage
    from builder.serving.preparation import PlannedContainer, PreparedServer


@dataclass(frozen=True)
class Started:
    """What serves now, or will. ``already`` says that it did before."""

    running: RunningServer
    selection: SelectedImage
    already: bool


def start(prepared: PreparedServer, environ: Mapping[str, str]) -> Started:
    """Starts it and does not wait for it to answer; does nothing where it is up already, just as it would be.

    Raises ConflictError where it is up but differently, or its port or name is taken; ServeFailedError where an
    engine cannot start it. Nothing is left behind then.
    """
    there = tuple(services.find(one.engine.endpoint, one.settings.name) for one in prepared.containers)
    if _is_up(prepared, there):
        members = tuple(
            ServerMember(one.engine, old) for one, old in zip(prepared.containers, there, strict=True) if old
        )
        return Started(RunningServer(members), prepared.selection, already=True)
    require_free_port(prepared, leaving=[prepared.head.settings.name])
    for one, old in zip(prepared.containers, there, strict=True):
        if old:
            containers.remove(one.engine.endpoint, old.id)
    made: list[ServerMember] = []
    try:
        for one in prepared.containers:
            made.append(_create(one, environ))  # noqa: PERF401  # those before a failure have to be known
        for member, one in zip(made, prepared.containers, strict=True):
            _require_same(member, one)
            _start(member)
    except BaseException:
        _remove(made)
        raise
    return Started(RunningServer(tuple(made)), prepared.selection, already=False)


def require_free_port(prepared: PreparedServer, leaving: Sequence[str] = ()) -> None:
    """Raises ConflictError where the port that it will answer on is in use, by others than those ``leaving``."""
    settings = prepared.head.settings
    if said := settings.labels.get(f"{LABEL}.port"):
        host = None if settings.ports else settings.labels.get(f"{LABEL}.host")
        ports.require_free(prepared.head.engine.endpoint, host, int(said), leaving)


def remove(running: RunningServer) -> None:
    """Ends it at once, and removes it."""
    _remove(running.members)


def _remove(members: Sequence[ServerMember]) -> None:
    for member in members:
        containers.remove(member.engine.endpoint, member.service.id)


def _is_up(prepared: PreparedServer, there: Sequence[Service | None]) -> bool:
    """Whether all of it is up as it would be started. Raises ConflictError where it is up differently, or something
    else has its name."""
    same = []
    for one, service in zip(prepared.containers, there, strict=True):
        if service is None:
            continue
        if LABEL not in service.labels:
            raise ConflictError(
                f"a container that is not builder's is called {service.name}",
                hint=f"`docker rm -f {service.name}` removes it, or give the recipe another name",
            )
        if service.is_up:
            same.append(service.labels.get(DIGEST) == one.settings.labels[DIGEST])
    if not all(same):
        raise _differs(prepared, there)
    return len(same) == len(prepared.containers)


def _differs(prepared: PreparedServer, there: Sequence[Service | None]) -> ConflictError:
    name, image = prepared.head.settings.name, str(prepared.selection.image)
    now = next(service for service in there if service and service.is_up).labels.get(f"{LABEL}.image")
    how = "with other options" if now == image else f"from {now}, and would now be served from {image}"
    return ConflictError(
        f"{name} is being served already, {how}", hint=f"`builder restart {name}` with the same options changes over"
    )


def _create(one: PlannedContainer, environ: Mapping[str, str]) -> ServerMember:
    if one.engine.endpoint.host.startswith("unix://"):
        _make_folders(one.settings)
    return ServerMember(
        one.engine, services.create(one.engine.endpoint, one.settings.name, api.write(one.settings, environ))
    )


def _make_folders(settings: ContainerSettings) -> None:
    """Makes what is mounted, as the person: the engine would make it as root."""
    for mount in settings.mounts:
        try:
            Path(mount.source).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{mount.source} cannot be made, to be mounted: {error.strerror}") from None


def _require_same(member: ServerMember, one: PlannedContainer) -> None:
    if member.service.content != one.image_id:
        raise ImageStateError(f"the tag {one.settings.image} was moved in this very moment: nothing was started")


def _start(member: ServerMember) -> None:
    try:
        services.start(member.engine.endpoint, member.service.id)
    except EngineHTTPError as error:
        hint = "`builder doctor` looks for what is missing" if "gpu" in error.explanation else ""
        raise ServeFailedError(f"{member.service.name} cannot be started: {error.explanation}", hint=hint) from None

"""A prepared server starts from exactly the checked image: the request, free ports, the start, the memory."""

from __future__ import annotations

import errno
import math
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.base import machine_record, words
from builder.base.errors import (
    ConflictError,
    ImageStateError,
    NoImageHelpsError,
    ServeFailedError,
    UsageError,
)
from builder.base.events import Message, Report, ignore
from builder.base.values import dataclass, replace
from builder.definitions.cluster import RDMA_DEVICES
from builder.definitions.container import COMPILED, DEFAULT_SHARE, GIB, GPU_MEMORY, LABEL, of_label
from builder.engine import containers, machine
from builder.engine.client import Endpoint, EngineHTTPError
from builder.serving import compile_caches
from builder.serving.preparation import PlannedContainer, PreparedServer, tried_mark
from builder.serving.running import DIGEST, RunningServer, ServerMember

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from concurrent.futures import Future

    from builder.base.machine_record import Machine
    from builder.definitions.container import ContainerSettings, GpuMemory
    from builder.definitions.mod import Mod
    from builder.engine.containers import Service
    from builder.numbers.workspace import Workspace
    from builder.serving.selection import ServedImage


# The request to the Engine API: https://docs.docker.com/reference/api/engine/ (containers/create).

_SECOND = 1_000_000_000
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
# Every probe adds three entries to the engine's event log. The log has room for 256, and `list` reads the history of
# images from it. So the engine probes often while the server starts (engines before 25 have no such setting), and
# seldom after it has answered. Then one failure is enough: code that needs the current state probes at once
# (`running.answers`).
_STARTING_INTERVAL = 15
_INTERVAL = 600
_MARK_SECONDS = 60.0  # for checking the mark of tried mods


def request_body(settings: ContainerSettings, environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns the body of the request; secrets come from ``environ``, if they are set."""
    secrets = {name: environ[name] for name in settings.secrets if name in environ}
    bindings: dict[str, list[dict[str, str]]] = {}
    for port in settings.ports:
        binding = {"HostPort": str(port.port), **({"HostIp": port.address} if port.address else {})}
        bindings.setdefault(f"{port.inside}/{port.protocol}", []).append(binding)
    healthcheck: dict[str, Any] = {"Test": ["NONE"]}
    if health := settings.health:
        healthcheck = {
            "Test": ["CMD", *health.argv],
            "Interval": _INTERVAL * _SECOND,
            "Timeout": health.timeout * _SECOND,
            "Retries": 1,
            "StartPeriod": health.start_period * _SECOND,
            "StartInterval": _STARTING_INTERVAL * _SECOND,
        }
    return {
        "Image": settings.image,
        # Without this key, the image's own entrypoint runs the command.
        **({} if settings.keep_entrypoint else {"Entrypoint": []}),
        "Cmd": list(settings.argv),
        "Env": [f"{name}={value}" for name, value in {**settings.env, **secrets}.items()],
        "Labels": dict(settings.labels),
        "Healthcheck": healthcheck,
        "StopSignal": settings.stop_signal,
        "StopTimeout": settings.stop_seconds,
        "ExposedPorts": {port: {} for port in bindings},
        "HostConfig": {
            "NetworkMode": settings.network,
            "PortBindings": bindings,
            "IpcMode": settings.ipc,
            **({"ShmSize": _bytes(settings.shm_size)} if settings.shm_size else {}),
            "Ulimits": [{"Name": name, "Soft": limit, "Hard": limit} for name, limit in settings.ulimits.items()],
            "Mounts": [
                {
                    "Type": "bind",
                    "Source": mount.source,
                    "Target": mount.target,
                    "ReadOnly": mount.read_only,
                    # The engine may be on another machine, where only it can create the folder.
                    "BindOptions": {"CreateMountpoint": mount.ours},
                }
                for mount in settings.mounts
            ],
            "RestartPolicy": {"Name": settings.restart},
            "Init": settings.init,
            "Devices": [
                {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"} for path in settings.devices
            ],
            "CapAdd": list(settings.capabilities),
            **({"Memory": _bytes(settings.memory)} if settings.memory else {}),
            **({"MemorySwap": _bytes(settings.memory_swap)} if settings.memory_swap else {}),
            **({"PidsLimit": settings.pids} if settings.pids else {}),
            "DeviceRequests": [{"Count": -1, "Capabilities": [["gpu"]]}] if settings.gpus else [],
        },
    }


def _bytes(size: str) -> int:
    """Returns ``16g`` as a number of bytes."""
    unit = _UNITS.get(size[-1].lower())
    return int(size[:-1]) * unit if unit else int(size)


def require_free_port(prepared: PreparedServer, leaving: Collection[str] = ()) -> None:
    """Raises ConflictError if the server's port is used by another program on this machine, or by a container of this
    program that is not ``leaving`` (by name)."""
    settings, endpoint, port = prepared.head.settings, prepared.head.engine, prepared.port
    if not port:
        return
    on_port = tuple(service for service in containers.labelled(endpoint, f"{LABEL}.port={port}") if service.is_up)
    for service in on_port:
        if service.name not in leaving:
            image = service.labels.get(f"{LABEL}.image", service.image)
            message = f"port {port} is already used by {service.name} (image {image})"
            hint = f"`builder stop {service.name}` stops it; to use another port: `--port N`"
            raise ConflictError(message, hint=hint)
    host = None if settings.ports else settings.labels.get(f"{LABEL}.host")
    if not on_port and endpoint.host.startswith("unix://") and not _can_listen(host, int(port)):
        message = f"port {port} is already used on this machine"
        hint = f"to see which program uses it: `sudo ss -ltnp 'sport = :{port}'`; to use another port: `--port N`"
        raise ConflictError(message, hint=hint)


def _can_listen(host: str | None, port: int) -> bool:
    """False only if the port is in use. The server itself reports any other problem better."""
    try:
        family = socket.AF_INET6 if host and ":" in host else socket.AF_INET
        socket.create_server((host or "", port), family=family).close()
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True


@dataclass(frozen=True)
class StartedServer:
    """A server that runs or starts now. ``was_running`` is True if it ran before. ``machines`` are the records of its
    machines at the start, empty if it ran before."""

    server: RunningServer
    selection: ServedImage
    was_running: bool
    machines: tuple[Machine, ...] = ()


def start_server(prepared: PreparedServer, environ: Mapping[str, str], report: Report) -> StartedServer:
    """Starts the server without waiting for an answer; does nothing if it already runs with these settings. Raises
    ConflictError if it runs with other settings, or its port or name is taken. A failed start leaves nothing behind."""
    environ = {**environ, **prepared.secrets}
    services = existing_containers(prepared)
    pairs = zip(prepared.containers, services, strict=True)
    existing = [ServerMember(planned.engine, service) for planned, service in pairs if service]
    if is_running(prepared, services):
        return StartedServer(RunningServer(tuple(existing)), prepared.selection, was_running=True)
    require_free_port(prepared, leaving=[member.service.name for member in existing])
    remove_server(RunningServer(tuple(existing)))
    for planned in prepared.containers:
        _begin_compiling(planned, report)
    created: list[ServerMember] = []
    engines = [(planned.engine, planned.settings.image) for planned in prepared.containers]
    reading = begin_reading(engines, environ)
    try:
        for planned in prepared.containers:
            created.append(_create(planned, environ))
            _require_planned_image(created[-1], planned)
        # The head node is last: it waits only a limited time for the others, and they for it.
        for member in reversed(created):
            _start(member)
    except BaseException:
        remove_server(RunningServer(tuple(created)))
        raise
    machines = tuple(each.result() for each in reading)
    return StartedServer(RunningServer(tuple(created)), prepared.selection, was_running=False, machines=machines)


def begin_reading(engines: Sequence[tuple[Endpoint, str]], environ: Mapping[str, str]) -> list[Future[Machine]]:
    """Begins to read the machines of these engines, each with the name of an image on it, while containers are
    created."""
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(max_workers=8)
    reading = [pool.submit(machine.read_machine, endpoint, environ, image) for endpoint, image in engines]
    pool.shutdown(wait=False)
    return reading


def existing_containers(prepared: PreparedServer) -> tuple[Service | None, ...]:
    """The existing containers of the server, in the order of its plan; None for a missing one."""
    return tuple(containers.find_container(planned.engine, planned.settings.name) for planned in prepared.containers)


def remove_server(server: RunningServer) -> None:
    """Ends the server at once, and removes its containers."""
    for member in server.members:
        containers.remove_container(member.engine, member.service.id)


def _has_mods(planned: PlannedContainer, service: Service, tried: Sequence[Mod]) -> bool:
    """False for a container that waits for mods. A restarted server already has them."""
    if not tried or service.status != "running":
        return True
    argv = ["test", "-e", tried_mark(tried)]
    try:
        return containers.execute(planned.engine, service.id, argv, _MARK_SECONDS).exit_code == 0
    except EngineHTTPError:  # the container has just ended, or the engine is restarting it
        return True


def is_running(prepared: PreparedServer, existing: Sequence[Service | None]) -> bool:
    """True if all ``existing`` containers run with these settings, and no container waits for mods. A container that
    waits is started again: the command that should have applied the mods was killed, or loses its container now. Raises
    ConflictError if some run with other settings or are paused, or another container has the name."""
    up = []
    for planned, service in zip(prepared.containers, existing, strict=True):
        where = f" on node {planned.engine.node}" if planned.engine.node else ""
        if service is not None and LABEL not in service.labels:
            message = f"another container{where}, not made by builder, is called {service.name}"
            hint = f"remove that container{where}: `docker rm -f {service.name}`; or give the recipe another name"
            raise ConflictError(message, hint=hint)
        if service is not None and service.status == "paused":
            name = service.labels[LABEL]
            hint = (
                f"to continue it{where}: `docker unpause {service.name}`; to start it again: `builder restart {name}`"
            )
            raise ConflictError(f"{name} is paused, and does not answer", hint=hint)
        if service is not None and service.is_up:
            up.append((planned, service))
    if all(service.labels.get(DIGEST) == planned.settings.labels[DIGEST] for planned, service in up):
        return len(up) == len(prepared.containers) and all(
            _has_mods(planned, service, prepared.tried) for planned, service in up
        )
    name, image = prepared.head.settings.labels[LABEL], prepared.selection.name
    now = up[0][1].labels.get(f"{LABEL}.image")
    how = "with other options" if now == image else f"from {now}, and would now be served from {image}"
    does = "apply these options" if now == image else "switch to that image"
    raise ConflictError(
        f"{name} is already being served, {how}", hint=f"to {does}: `builder stop {name}`, then run the command again"
    )


def local_compile_cache(endpoint: Endpoint, labels: Mapping[str, str]) -> Path | None:
    """The folder on this machine with the compile caches of a container; None without caches or on another machine."""
    folder = labels.get(COMPILED)
    return Path(folder) if folder and endpoint.host.startswith("unix://") else None


def _begin_compiling(planned: PlannedContainer, report: Report) -> None:
    """Removes incomplete files from the compile caches of a container, unless a server uses them now."""
    folder = local_compile_cache(planned.engine, planned.settings.labels)
    services = containers.labelled(planned.engine, LABEL) if folder else ()
    if folder is None or any(service.is_up and service.labels.get(COMPILED) == str(folder) for service in services):
        return
    if removed := compile_caches.begin(planned.engine, folder, planned.settings.image):
        damaged = words.counted(len(removed), "incomplete or damaged file")
        report(Message(f"removed {damaged} from the compile caches; the server compiles the missing parts again"))


def _create(planned: PlannedContainer, environ: Mapping[str, str]) -> ServerMember:
    settings, endpoint = planned.settings, planned.engine
    # Mounted folders are made as the user: the engine would make them as root.
    for mount in settings.mounts if endpoint.host.startswith("unix://") else ():
        try:
            if mount.ours:
                Path(mount.source).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"the folder {mount.source}, which the server mounts, cannot be created: {error.strerror}"
            hint = "create the folder yourself, or give yourself write access to its parent folder"
            raise UsageError(message, hint=hint) from None
    service = containers.create(endpoint, settings.name, request_body(settings, environ))
    return ServerMember(planned.engine, service)


def _require_planned_image(member: ServerMember, planned: PlannedContainer) -> None:
    if member.service.image_id != planned.image_id:
        message = f"the tag {planned.settings.image} was moved to another image during the start: nothing was started"
        raise ImageStateError(message, hint="run the command again")


def _start(member: ServerMember) -> None:
    try:
        containers.start_service(member.engine, member.service.id)
    except EngineHTTPError as error:
        name = member.service.labels[LABEL]
        if "gpu" in error.explanation.casefold():  # the wording differs between releases of Docker
            raise NoImageHelpsError(
                f"{name} needs a GPU, but this engine gives containers no access to one ({error.explanation})",
                hint="on a machine with an NVIDIA GPU, `builder doctor` finds what is missing; an image for the CPU has"
                " `serve: {gpus: none}` in its image.yaml",
            ) from None
        hint = ""
        if RDMA_DEVICES in error.explanation:
            hint = "`builder nodes check` lists the RoCE devices; `rdma: []` in builder.yaml leaves them out"
        raise ServeFailedError(f"{name} cannot be started: {error.explanation}", hint=hint) from None


# The memory of a machine whose GPU has no memory of its own, and whether a server fits into it.
#
# The GPU of a DGX Spark (GB10) allocates the machine's memory, and the driver reports no memory of its own:
# `nvidia-smi` says "Not Supported" (https://docs.nvidia.com/dgx/dgx-spark/known-issues.html). So the kernel's
# MemAvailable counts. Such a GPU is recognized by its model in /proc/driver/nvidia/gpus/*/information.

# GB10 of the DGX Spark and related machines; the GPUs of Jetson boards share their memory in the same way.
_UNIFIED = re.compile(r"\b(GB10|Thor|Orin)\b")


def shared_with_gpu(endpoint: Endpoint, environ: Mapping[str, str], image: str) -> Machine | None:
    """The record of the engine's machine, from its files alone. None if its GPU has its own memory, or the memory is
    unknown."""
    record = machine_record.parse_machine(machine.read_machine_files(endpoint, environ, image), {})
    return record if _UNIFIED.search(record.gpu) and record.memory and record.available else None


# The free memory, before a server starts: a Spark without free memory does not end a process; it freezes.

_FORCE = "`--force` of `builder run` starts the server anyway"


def require_room(workspace: Workspace, prepared: PreparedServer, leaving: Collection[Service]) -> None:
    """Raises ConflictError if the server does not fit into the memory of its machines; with `force` only reports it.
    The memory of the containers ``leaving`` counts as free. A server without a GPU is not checked."""
    shortages = [
        shortage
        for planned in prepared.containers
        if planned.settings.gpus and (shortage := _shortage(planned, workspace.environment, prepared.reserve, leaving))
    ]
    reasons = list(dict.fromkeys(reason for reason, _ in shortages))
    if prepared.force:
        for reason in reasons:
            workspace.report(Message(f"{reason}; starting the server anyway"))
    elif reasons:
        raise ConflictError("\n".join([f"{reasons[0]}: nothing was started", *reasons[1:]]), hint=shortages[0][1])


def _shortage(
    planned: PlannedContainer, environ: Mapping[str, str], reserve: int, leaving: Collection[Service]
) -> tuple[str, str] | None:
    label = planned.settings.labels.get(GPU_MEMORY)
    memory = shared_with_gpu(planned.engine, environ, planned.settings.image) if label else None
    if label is None or memory is None:
        return None
    up = [service for service in containers.labelled(planned.engine, LABEL) if service.is_up]
    ids = {service.id for service in leaving}
    ending = [of_label(service.labels.get(GPU_MEMORY, "")) for service in up if service.id in ids]
    available = min(memory.memory, memory.available + sum(taken.of(memory.memory) for taken in ending))
    where = f"node {planned.engine.node}" if planned.engine.node else "this machine"
    others = [service for service in up if service.id not in ids]
    return memory_shortage(of_label(label), replace(memory, available=available), where, reserve, others)


def memory_shortage(
    wanted: GpuMemory, record: Machine, where: str, reserve: int, others: Sequence[Service] = ()
) -> tuple[str, str] | None:
    """The reason why ``wanted`` does not fit into the memory of a machine on which ``others`` serve, and a remedy; None
    if it fits and leaves the ``reserve`` (in bytes). vLLM itself ends if less than its share is available."""
    total, available = record.memory, record.available
    needed = wanted.of(total)
    share = f"{needed / GIB:.1f} GiB"
    if not wanted.gibibytes:
        share += f" ({wanted}{', the default,' if wanted.share == DEFAULT_SHARE else ''} of {_gib(total)})"
    if total - needed < reserve:
        left = f"leave {_gib(max(0, total - needed))}: less than the reserve of {_gib(reserve)}"
        less = _less(wanted, total, min(available, total - reserve))
        return (
            f"the server would take {share} of the memory of {where}, and {left}",
            f"{less}; or set a smaller `reserve` in builder.yaml; {_FORCE}",
        )
    if needed > available:
        names = [(service.labels[LABEL], service.labels.get(GPU_MEMORY)) for service in others]
        servers = " and ".join(name + (f" (GPU memory: {given})" if given else "") for name, given in names)
        stops = "".join(f"`builder stop {service.labels[LABEL]}` makes room; " for service in others[:1])
        beside = f" while {servers} {'is' if len(names) == 1 else 'are'} running" if servers else ""
        return (
            f"the server needs {share}, but {where} has only {_gib(available)} of memory available{beside}",
            f"{stops}{_less(wanted, total, available)}; {_FORCE}",
        )
    return None


def _less(wanted: GpuMemory, total: int, fitting: int) -> str:
    """Advice to use at most ``fitting`` bytes."""
    if wanted.gibibytes:
        return f"a smaller --gpu-memory-utilization-gb fits (up to {max(0, fitting) // GIB})"
    share = math.floor(fitting / total * 100) / 100
    fits = f"`--gpu-mem {share:.2f}` of `builder run` would fit, if the model does"
    return fits if share > 0 else "no share of the memory would fit"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def fits_beside(workspace: Workspace, prepared: PreparedServer) -> bool:
    """True if a server may run beside the present servers. Unknown memory does not count as enough."""
    for planned in prepared.containers:
        environ, settings = workspace.environment, planned.settings
        is_unknown = settings.gpus and shared_with_gpu(planned.engine, environ, settings.image) is None
        if planned.engine.node or is_unknown:
            return False
    try:
        require_room(replace(workspace, report=ignore), prepared, ())
    except ConflictError:
        return False
    return True

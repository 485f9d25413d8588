"""The container that serves a recipe: everything needed to start it, or to describe it to another tool.

Data only, the same for `run` and for every format of `export`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from builder.definitions.recipes import arguments, container_options, gpu_memory, publishing, volumes
from builder.definitions.recipes.volumes import Mount
from builder.errors import UsageError
from builder.storage import huggingface_cache

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.recipes.command import ServeCommand
    from builder.definitions.recipes.container_options import ContainerOptions
    from builder.definitions.recipes.publishing import PublishedPort
    from builder.definitions.recipes.recipe import Recipe
    from builder.definitions.serving import ServeSettings

LABEL = "builder.serve"
# Owners stop and watch their servers by it: `docker ps --filter name=vllm`.
_NAME_PREFIX = "vllm-"
# The GPU memory that the server asks for, as `gpu_memory` writes it; and where its port is another one inside, or the
# machine's is published on one address only.
GPU_MEMORY = f"{LABEL}.gpu_memory"
PORT_INSIDE = f"{LABEL}.inside"
ADDRESS = f"{LABEL}.address"

# Taken from the environment of whoever starts the container. Their values are never written down.
SECRETS = ("HF_TOKEN",)

HOME = "/root"
# Caches of what vLLM and its kernel libraries compile. They belong to one build: another may read them and break.
COMPILE_CACHES = {
    "vllm": ".cache/vllm",
    "flashinfer": ".cache/flashinfer",
    "triton": ".triton",
    "tilelang": ".tilelang",
}
# As the community's launcher sets them on a DGX Spark: NCCL uses all cores, whatever its process was bound to, and
# PyTorch's allocator returns memory that the CPU shares with the GPU.
GPU_ENVIRONMENT = {"NCCL_IGNORE_CPU_AFFINITY": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
OPEN_FILES = 1_048_576
# A large model takes ten minutes to load, and longer where its kernels are compiled for the first time.
STARTING_SECONDS = 3600
STOPPING_SECONDS = 60

# With http.client, which ignores proxies, and without site-packages, whose import takes seconds in a vLLM image.
_PROBE = (
    "import http.client as c, sys; h = c.HTTPConnection({host!r}, {port}, timeout=8); "
    "h.request('GET', '/health'); sys.exit(h.getresponse().status != 200)"
)


@dataclass(frozen=True)
class HealthCheck:
    """The health check of the server: ``argv``, which runs in the container, and times in seconds. Failures count only
    after ``start_period``. `run` checks less often once the server has answered (see `serving.engine_request`)."""

    argv: tuple[str, ...]
    interval: int = 15
    timeout: int = 10
    retries: int = 4
    start_period: int = STARTING_SECONDS


@dataclass(frozen=True)
class ContainerSettings:
    """The settings of a container. ``argv`` replaces the image's command, and unless ``keep_entrypoint`` its
    entrypoint. ``secrets`` are the names of variables to pass on from the environment if they are set. ``ports`` are
    published where the network is not the host's; ``shm_size`` is in Docker's notation (``16g``), and empty where
    ``ipc`` is the host's; a ulimit of -1 is unlimited. ``memory`` and ``memory_swap`` (memory and swap together), in
    Docker's notation, and ``pids`` are limits; empty and 0 are none. ``devices`` are paths, the same inside as on the
    host, ``capabilities`` such as IPC_LOCK."""

    name: str
    image: str
    argv: tuple[str, ...]
    env: dict[str, str]
    secrets: tuple[str, ...]
    gpus: bool
    network: str
    ports: tuple[PublishedPort, ...]
    ipc: str
    shm_size: str
    mounts: tuple[Mount, ...]
    labels: dict[str, str]
    health: HealthCheck | None
    ulimits: dict[str, int]
    restart: str = "unless-stopped"
    init: bool = True
    stop_signal: str = "SIGTERM"
    stop_seconds: int = STOPPING_SECONDS
    devices: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    memory: str = ""
    memory_swap: str = ""
    pids: int = 0
    keep_entrypoint: bool = False


def settings(
    recipe: Recipe,
    command: ServeCommand,
    serving: ServeSettings,
    image: tuple[str, int] | str,
    environ: Mapping[str, str],
    options: ContainerOptions = container_options.NONE,
) -> ContainerSettings:
    """The container that serves ``recipe`` with ``command`` from ``image``: its repository and number, or a name that
    has none. What such an image compiles is not kept, since another may have its name next time.

    ``environ`` is the user's: HOME, XDG_CACHE_HOME, HF_HOME and HF_HUB_CACHE locate their caches. Raises UsageError
    where ``options`` publish ports of a server that only its own container reaches.
    """
    image_name = image if isinstance(image, str) else f"{image[0]}:{image[1]}"
    compiled = () if isinstance(image, str) else _compile_caches(environ, *image)
    name = service_name(recipe.name)
    labels = {
        LABEL: name,
        f"{LABEL}.image": image_name,
        f"{LABEL}.recipe": recipe.file,
        f"{LABEL}.model": recipe.model or command.model or "",
        f"{LABEL}.names": json.dumps(command.served),
        f"{LABEL}.host": command.host or "",
    }
    gpus = serving.gpus == "all"
    network = "bridge" if options.publish else serving.network
    ports = () if network == "host" else publishing.with_server(options.publish, command.port)
    if options.publish:
        _require_reachable(command)
    labels |= _port_labels(command, ports)
    if gpus and (memory := gpu_memory.read(command.words)):
        labels[GPU_MEMORY] = str(memory)
    return ContainerSettings(
        name=container_name(name),
        image=image_name,
        argv=command.argv,
        env=container_options.with_variables(environment(command, serving), options),
        secrets=_secrets(command, options),
        gpus=gpus,
        network=network,
        ports=ports,
        ipc=serving.ipc,
        shm_size="" if serving.ipc == "host" else serving.shm_size,
        mounts=volumes.merged((*_model_caches(environ), *compiled), options.volumes),
        labels={key: value for key, value in labels.items() if value},
        health=_health(command),
        # Loaders pin memory for the GPU, and open many files at once.
        ulimits={"memlock": -1, "nofile": OPEN_FILES} if gpus else {},
        memory=options.memory,
        keep_entrypoint=serving.keep_entrypoint,
    )


def _secrets(command: ServeCommand, options: ContainerOptions) -> tuple[str, ...]:
    wanted = [name for name, value in options.env.items() if value is None]
    return (*wanted, *(name for name in SECRETS if name not in command.env and name not in options.env))


def _port_labels(command: ServeCommand, ports: tuple[PublishedPort, ...]) -> dict[str, str]:
    """The labels that tell where clients reach the server, and where it listens if that is not the same."""
    published = publishing.of_server(ports, command.port)
    if published is None:
        return {f"{LABEL}.port": str(command.port or "")}
    inside = "" if published.port == published.inside else str(published.inside)
    return {f"{LABEL}.port": str(published.port), PORT_INSIDE: inside, ADDRESS: published.address}


def _require_reachable(command: ServeCommand) -> None:
    if command.host in {"localhost", "::1"} or (command.host or "").startswith("127."):
        raise UsageError(
            f"the server listens on {command.host}: only its own container reaches it, whatever is published",
            hint="`--host 0.0.0.0` makes it listen on all addresses of its container",
        )


def environment(command: ServeCommand, serving: ServeSettings) -> dict[str, str]:
    """The variables of the container that serves with ``command``; those of the recipe count."""
    return {**(GPU_ENVIRONMENT if serving.gpus == "all" else {}), **command.env}


def service_name(text: str) -> str:
    """The server's name, by which commands find it: ``Qwen3.5-122B (fast)`` gives ``qwen3-5-122b-fast``."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "model"


def container_name(server: str) -> str:
    """The name of a server's container and compose service: ``vllm-qwen3-5-122b-fast``."""
    return server if server.startswith(_NAME_PREFIX) else f"{_NAME_PREFIX}{server}"


def compile_cache(environ: Mapping[str, str], repository: str, number: int) -> str:
    """The folder on the host with everything that a numbered image has compiled."""
    return str(PurePosixPath(_cache_home(environ), "builder", "compile", repository, str(number)))


def _cache_home(environ: Mapping[str, str]) -> str:
    return environ.get("XDG_CACHE_HOME") or str(PurePosixPath(environ.get("HOME") or HOME, ".cache"))


def _model_caches(environ: Mapping[str, str]) -> tuple[Mount, ...]:
    home, hub = huggingface_cache.home(environ), huggingface_cache.hub(environ)
    inside = f"{HOME}/.cache/huggingface"
    return (Mount(str(home), inside), *((Mount(str(hub), f"{inside}/hub"),) if hub != home / "hub" else ()))


def _compile_caches(environ: Mapping[str, str], repository: str, number: int) -> tuple[Mount, ...]:
    folder = compile_cache(environ, repository, number)
    return tuple(Mount(f"{folder}/{name}", f"{HOME}/{inside}") for name, inside in COMPILE_CACHES.items())


def _health(command: ServeCommand) -> HealthCheck | None:
    if command.port is None:
        return None
    return HealthCheck(probe(arguments.reached_at(command.host), command.port))


def probe(host: str, port: int) -> tuple[str, ...]:
    """The command that exits with 0 in the container if the server answers."""
    return ("python3", "-ISc", _PROBE.format(host=host, port=port))

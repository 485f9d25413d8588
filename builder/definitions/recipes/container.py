"""The container that serves a recipe: everything needed to start it, or to describe it to another tool.

Data only, the same for `run` and for every format of `export`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from builder.definitions.recipes import arguments
from builder.storage import huggingface_cache

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.recipes.command import ServeCommand
    from builder.definitions.recipes.recipe import Recipe
    from builder.definitions.serving import ServeSettings

LABEL = "builder.serve"

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
class Mount:
    """A bind mount: a folder of the host, as an absolute path, and its path in the container."""

    source: str
    target: str


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
    """The settings of a container. ``argv`` replaces the image's entrypoint and command. ``secrets`` are the names of
    variables to pass on from the environment if they are set. ``ports`` are published where the network is not the
    host's; ``shm_size`` is in Docker's notation (``16g``), and empty where ``ipc`` is the host's; a ulimit of -1 is
    unlimited. ``memory`` and ``memory_swap`` (memory and swap together), in Docker's notation, and ``pids`` are limits;
    empty and 0 are none. ``devices`` are paths, the same inside as on the host, ``capabilities`` such as IPC_LOCK."""

    name: str
    image: str
    argv: tuple[str, ...]
    env: dict[str, str]
    secrets: tuple[str, ...]
    gpus: bool
    network: str
    ports: tuple[int, ...]
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


def settings(
    recipe: Recipe,
    command: ServeCommand,
    serving: ServeSettings,
    image: tuple[str, int] | str,
    environ: Mapping[str, str],
) -> ContainerSettings:
    """The container that serves ``recipe`` with ``command`` from ``image``: its repository and number, or a name that
    has none. What such an image compiles is not kept, since another may have its name next time.

    ``environ`` is the user's: HOME, XDG_CACHE_HOME, HF_HOME and HF_HUB_CACHE locate their caches.
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
        f"{LABEL}.port": str(command.port or ""),
        f"{LABEL}.host": command.host or "",
    }
    gpus = serving.gpus == "all"
    return ContainerSettings(
        name=name,
        image=image_name,
        argv=command.argv,
        env=environment(command, serving),
        secrets=tuple(secret for secret in SECRETS if secret not in command.env),
        gpus=gpus,
        network=serving.network,
        ports=() if serving.network == "host" or command.port is None else (command.port,),
        ipc=serving.ipc,
        shm_size="" if serving.ipc == "host" else serving.shm_size,
        mounts=(*_model_caches(environ), *compiled),
        labels={key: value for key, value in labels.items() if value},
        health=_health(command),
        # Loaders pin memory for the GPU, and open many files at once.
        ulimits={"memlock": -1, "nofile": OPEN_FILES} if gpus else {},
    )


def environment(command: ServeCommand, serving: ServeSettings) -> dict[str, str]:
    """The variables of the container that serves with ``command``; those of the recipe count."""
    return {**(GPU_ENVIRONMENT if serving.gpus == "all" else {}), **command.env}


def service_name(text: str) -> str:
    """A valid name for containers and compose services: ``Qwen3.5-122B (fast)`` gives ``qwen3-5-122b-fast``."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "model"


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

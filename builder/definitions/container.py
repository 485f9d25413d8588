"""The container that serves a recipe, as data only: ports, volumes, settings, GPU memory, and earlyoom.

The command line overrides the recipe, the recipe overrides builder.yaml, and builder.yaml overrides the defaults. The
value of a secret is never stored: labels, files and errors contain only its name, and the value comes from the
environment of the user who starts the container.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from builder.base import hub_cache, redaction, words
from builder.base.errors import Problem, UsageError, require_no_problems
from builder.base.values import dataclass, field, replace
from builder.definitions import command
from builder.definitions.command import ServeCommand, after_steps, reached_at
from builder.definitions.configuration import RequestedOptions

if TYPE_CHECKING:
    from builder.definitions.image import ServeSettings
    from builder.definitions.recipe import Recipe


# Published ports: a port of the machine leads to a port of a container with its own network.

_FORM = re.compile(r"(?:(?:(\[[0-9A-Fa-f:]+\]|[0-9.]+):)?([0-9]{1,5}):)?([0-9]{1,5})(?:/(tcp|udp))?")


@dataclass(frozen=True)
class PublishedPort:
    """A port of the machine, on all addresses unless one is given, and the port ``inside`` the container."""

    port: int
    inside: int
    address: str = ""
    protocol: str = "tcp"

    def __str__(self) -> str:
        """Docker's notation: ``[ADDRESS:]PORT:INSIDE[/udp]``."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        protocol = "" if self.protocol == "tcp" else f"/{self.protocol}"
        return f"{f'{host}:' if host else ''}{self.port}:{self.inside}{protocol}"


def parse_port(text: str) -> PublishedPort:
    """Parses ``[[ADDRESS:]PORT:]INSIDE[/udp]``. Raises ValueError with the reason for anything else."""
    match = _FORM.fullmatch(text)
    if not match:
        raise ValueError("expected PORT:INSIDE, such as 8001:8000")
    inside = int(match[3])
    port = int(match[2] or inside)
    if wrong := [number for number in (port, inside) if not 1 <= number <= 65535]:
        raise ValueError(f"{wrong[0]} is not a port: expected 1 to 65535")
    return PublishedPort(port, inside, (match[1] or "").strip("[]"), match[4] or "tcp")


def with_server(ports: Sequence[PublishedPort], port: int | None) -> tuple[PublishedPort, ...]:
    """``ports``, plus the server's own port if no port leads to it."""
    return tuple(ports) if port is None or of_server(ports, port) else (*ports, PublishedPort(port, port))


def of_server(ports: Sequence[PublishedPort], port: int | None) -> PublishedPort | None:
    """The first of ``ports`` that leads to the server, which listens on ``port``."""
    return next((published for published in ports if published.inside == port and published.protocol == "tcp"), None)


# Volumes: folders and files of the machine that a server sees, written ``SRC:DST`` or ``SRC:DST:ro``.

_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))", re.ASCII)


@dataclass(frozen=True)
class Mount:
    """A bind mount: a folder or file of the host, as an absolute path, and its path in the container. A missing
    folder is created only if it is ``ours``: a missing volume is a mistake."""

    source: str
    target: str
    read_only: bool = False
    ours: bool = True

    def __str__(self) -> str:
        return f"{self.source}:{self.target}" + (":ro" if self.read_only else "")


def parse_volume(text: str, environ: Mapping[str, str], folder: Path) -> Mount:
    """Parses ``SRC:DST``, ``SRC:DST:ro`` or ``SRC:DST:rw``. SRC may begin with ``~`` and contain variables of
    ``environ``. It is relative to ``folder`` if it begins with a dot. Raises ValueError with the reason for anything
    else."""
    source, *rest = text.split(":")
    target, mode = (*rest, "", "")[:2]
    if len(rest) not in {1, 2} or not source or not target:
        raise ValueError("expected SRC:DST or SRC:DST:ro")
    if mode not in {"", "ro", "rw"} or (len(rest) == 2 and not mode):
        raise ValueError(f"`{mode}` is not a valid volume mode: write `ro` or nothing")
    path = PurePosixPath(target)
    if not path.is_absolute() or ".." in path.parts or len(path.parts) < 2:
        raise ValueError(f"`{target}` is not a path in the container: write a folder or file after /, without `..`")
    return Mount(_source(source, environ, folder), str(path), read_only=mode == "ro", ours=False)


def _source(text: str, environ: Mapping[str, str], folder: Path) -> str:
    if text == "~" or text.startswith("~/"):
        text = f"${{HOME}}{text[1:]}"

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not environ.get(name):
            raise ValueError(f"{name} is not set in the environment")
        return environ[name]

    expanded = _VARIABLE.sub(value, text)
    if "$" in expanded or ":" in expanded or "\0" in expanded:
        raise ValueError(f"`{expanded}` cannot be mounted: the path contains `$` or `:`")
    if expanded.split("/")[0] in {".", ".."}:
        return os.path.normpath(folder / expanded)
    if not expanded.startswith("/"):
        begins = "it must begin with /, ~/ or ./ (Docker's named volumes are not supported)"
        raise ValueError(f"`{text}` is not a path: {begins}")
    return os.path.normpath(expanded)


def fault(text: str) -> str:
    """The reason why ``text`` is an invalid volume in every environment; empty if it may be valid."""
    everything = {match[1] or match[2]: "/value" for match in _VARIABLE.finditer(text)}
    try:
        parse_volume(text, {"HOME": "/home", **everything}, Path("/"))
    except ValueError as error:
        return str(error)
    return ""


def merged(ours: Sequence[Mount], volumes: Sequence[Mount]) -> tuple[Mount, ...]:
    """``ours`` and then ``volumes``. A volume replaces an earlier mount at the same path, and our own mounts below it:
    the models folder contains the hub's folder."""
    replaced = {mount.target for mount in ours} & {volume.target for volume in volumes}
    kept = [mount for mount in ours if not any(f"{mount.target}/".startswith(f"{target}/") for target in replaced)]
    return (*kept, *{volume.target: volume for volume in volumes}.values())


# The user's container settings: on the command line, in a recipe (``volumes``, ``env``) and in builder.yaml.

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SIZE = re.compile(r"[1-9][0-9]*[kmg]", re.ASCII)
T = TypeVar("T")


@dataclass(frozen=True)
class ContainerOptions:
    """The parsed options. The value of a variable with None comes from the environment of the user who starts the
    container, or from ``secrets``, which are never stored."""

    volumes: tuple[Mount, ...] = ()
    env: Mapping[str, str | None] = field(default_factory=dict)
    publish: tuple[PublishedPort, ...] = ()
    earlyoom: bool = False
    memory: str = ""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)


NONE = ContainerOptions()


def settle_container_options(
    configured: RequestedOptions,
    recipe: Recipe,
    typed: RequestedOptions,
    environ: Mapping[str, str],
    folders: tuple[Path, Path],
) -> tuple[ContainerOptions, Recipe]:
    """The options for a container of ``recipe``, and the recipe without the typed variables. ``typed`` options override
    ``configured`` options of builder.yaml. Relative paths are in one of the ``folders``: the project for files, and the
    current folder for typed options. Raises UsageError for an invalid option, FileProblemsError for an invalid volume
    of the recipe."""
    project, current = folders
    env_of_file, secrets_of_file = _environment(configured.env, "env", " in builder.yaml")
    env_typed, secrets_typed = _environment(typed.env, "--env", "")
    secrets = {**secrets_of_file, **secrets_typed}
    own = []
    problems = []
    for index, text in enumerate(recipe.volumes):
        try:
            own.append(parse_volume(text, environ, project))
        except ValueError as error:
            problems.append(Problem(recipe.location("volumes", index), f"`{text}`: {error}"))
    require_no_problems(problems)
    mounts = (
        *_each(configured.volumes, lambda text: parse_volume(text, environ, project), "builder.yaml: volumes"),
        *own,
        *_each(typed.volumes, lambda text: parse_volume(text, environ, current), "--volume"),
    )
    env = {**{name: value for name, value in env_of_file.items() if name not in recipe.env}, **env_typed}
    memory = typed.memory or configured.memory
    if memory and not _SIZE.fullmatch(memory):
        where = "--memory" if typed.memory else "builder.yaml: memory"
        raise UsageError(f"{where} {memory}: expected a size such as 100g")
    published = ("--publish", typed.publish) if typed.publish else ("builder.yaml: publish", configured.publish)
    options = ContainerOptions(
        volumes=merged((), mounts),
        env=env,
        publish=_each(published[1], parse_port, published[0]),
        earlyoom=bool(configured.earlyoom if typed.earlyoom is None else typed.earlyoom),
        memory=memory,
        secrets={name: value for name, value in secrets.items() if env.get(name, "") is None},
    )
    return options, replace(recipe, env={name: value for name, value in recipe.env.items() if name not in env_typed})


def _each(texts: Sequence[str], parse: Callable[[str], T], where: str) -> tuple[T, ...]:
    result = []
    for text in texts:
        try:
            result.append(parse(text))
        except ValueError as error:
            raise UsageError(f"{where} {text}: {error}") from None
    return tuple(result)


def _environment(texts: Sequence[str], option: str, where: str) -> tuple[dict[str, str | None], dict[str, str]]:
    """The variables, with None for the value of a secret, and the secrets. No message contains a value."""
    env: dict[str, str | None] = {}
    values: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not _NAME.fullmatch(name) or "\0" in value:
            shown = f"{option} {name}=…" if sign else f"{option} …"
            raise UsageError(f"{shown}{where}: expected NAME=VALUE, or NAME")
        values.pop(name, None)
        env[name] = value if sign and not redaction.looks_secret(name, value) else None
        if sign and env[name] is None:
            values[name] = value
    return env, values


def kept(typed: RequestedOptions, environ: Mapping[str, str], folder: Path) -> RequestedOptions:
    """``typed`` for a label, without the values of secrets, so that the server can be started again from any folder."""
    env, _ = _environment(typed.env, "--env", "")
    return replace(
        typed,
        volumes=tuple(map(str, _each(typed.volumes, lambda text: parse_volume(text, environ, folder), "--volume"))),
        env=tuple(name if value is None else f"{name}={value}" for name, value in env.items()),
    )


def again(before: RequestedOptions, typed: RequestedOptions) -> RequestedOptions:
    """The ``kept`` options of an earlier request, with the parts that ``typed`` replaces or adds."""
    return RequestedOptions(
        volumes=(*before.volumes, *typed.volumes),
        env=(*before.env, *typed.env),
        publish=typed.publish or before.publish,
        earlyoom=before.earlyoom if typed.earlyoom is None else typed.earlyoom,
        memory=typed.memory or before.memory,
    )


def typed_variables(typed: RequestedOptions) -> ContainerOptions:
    """Only the variables of the command line."""
    return ContainerOptions(env=_environment(typed.env, "--env", "")[0])


def with_variables(env: Mapping[str, str], options: ContainerOptions) -> dict[str, str]:
    """``env`` with the variables of ``options``, except variables whose value comes from the environment."""
    return {name: value for name, value in {**env, **options.env}.items() if value is not None}


def require_values(options: ContainerOptions, environ: Mapping[str, str]) -> None:
    """Raises UsageError if a variable must come from ``environ``, and is not set there."""
    taken = [name for name, value in options.env.items() if value is None and name not in options.secrets]
    if missing := [name for name in taken if name not in environ]:
        hint = f"set each variable, or pass `--env {missing[0]}=…`; a value that looks like a secret is not stored"
        raise UsageError(f"{', '.join(missing)}: not set in your environment", hint=hint)


# The GPU memory that a serve command requests in its words.

GIB = 1 << 30
# vLLM's default (vllm/config/cache.py); 0.9 in older releases.
DEFAULT_SHARE = 0.92
_SHARE = "--gpu-memory-utilization"
# The option of the community's mod gpu-mem-util-gb.
_GIBIBYTES = "--gpu-memory-utilization-gb"


@dataclass(frozen=True)
class GpuMemory:
    """A share of the GPU's memory, or an amount in GiB."""

    share: float = 0.0
    gibibytes: float = 0.0

    def of(self, total: int) -> int:
        return int(self.gibibytes * GIB) if self.gibibytes else int(self.share * total)

    def __str__(self) -> str:
        """The form in labels: ``0.9``, or ``96g``."""
        return f"{self.gibibytes:g}g" if self.gibibytes else f"{self.share:g}"


def read_gpu_memory(words: Sequence[str]) -> GpuMemory | None:
    """The memory that a command requests; None if only the shell knows it, or if no model is served."""
    if (amount := command.option(words, _GIBIBYTES)) is not None:
        return GpuMemory(gibibytes=_number(amount)) if _number(amount) else None
    if (share := command.option(words, _SHARE)) is not None:
        return GpuMemory(_number(share)) if _number(share) else None
    return GpuMemory(DEFAULT_SHARE) if command.model(words) is not None else None


def of_label(text: str) -> GpuMemory:
    """The memory in a label; vLLM's default for any other text."""
    number = _number(text.removesuffix("g"))
    return GpuMemory(gibibytes=number) if number and text.endswith("g") else GpuMemory(number or DEFAULT_SHARE)


def _number(text: str) -> float:
    """The positive number in the text, or 0."""
    with suppress(ValueError):
        return number if 0 < (number := float(text)) < float("inf") else 0.0
    return 0.0


# The container: everything that is needed to start it, or to export it to another tool.

LABEL = words.SERVER_LABEL
# Users find their servers by this prefix: `docker ps --filter name=vllm`.
_NAME_PREFIX = "vllm-"
# The GPU memory that the server requests, as in `gpu_memory`; and its port inside or its address, if they differ from
# the published port.
GPU_MEMORY = f"{LABEL}.gpu_memory"
PORT_INSIDE = f"{LABEL}.inside"
ADDRESS = f"{LABEL}.address"
# The folder on the host with the compile caches of the container.
COMPILED = f"{LABEL}.compiled"

# Their values come from the environment of the user who starts the container, and are never stored.
SECRETS = ("HF_TOKEN",)

HOME = "/root"
# Caches of the code that vLLM and its kernel libraries compile. They belong to one build: another build may fail with
# them.
COMPILE_CACHES = {
    "vllm": ".cache/vllm",
    "flashinfer": ".cache/flashinfer",
    "b12x": ".cache/b12x",
    "triton": ".triton",
    "tilelang": ".tilelang",
}
# The settings of the community's launcher for a DGX Spark: NCCL uses all cores, regardless of the CPU affinity, and
# PyTorch's allocator returns memory, which the CPU shares with the GPU.
GPU_ENVIRONMENT = {
    "NCCL_IGNORE_CPU_AFFINITY": "1",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    # Otherwise, Inductor moves Triton's cache into a folder of its own while it compiles a model
    # (torch 2.11, _inductor/runtime/triton_heuristics.py). The next start loads the compiled model, looks in Triton's
    # usual folder, and compiles all other kernels again.
    "TRITON_CACHE_DIR": f"{HOME}/{COMPILE_CACHES['triton']}/cache",
}
# Otherwise, Inductor precompiles a C++ header below /tmp at each start, even if every kernel is cached
# (torch 2.13, _inductor/codecache.py: _precompile_header).
CPU_ENVIRONMENT = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
OPEN_FILES = 1_048_576
# A large model takes ten minutes to load, and longer if its kernels are compiled for the first time.
STARTING_SECONDS = 3600
STOPPING_SECONDS = 60

# http.client ignores proxies. In a vLLM image, importing site-packages would take seconds.
_PROBE = (
    "import http.client as c, sys; h = c.HTTPConnection({host!r}, {port}, timeout=8); "
    "h.request('GET', '/health'); sys.exit(h.getresponse().status != 200)"
)


@dataclass(frozen=True)
class HealthCheck:
    """The health check in the container, with times in seconds. Failures count only after ``start_period``. After the
    server has answered, `run` checks less often."""

    argv: tuple[str, ...]
    interval: int = 15
    timeout: int = 10
    retries: int = 4
    start_period: int = STARTING_SECONDS


@dataclass(frozen=True)
class ContainerSettings:
    """The settings of a container. ``argv`` replaces the image's command, and unless ``keep_entrypoint`` its
    entrypoint. ``secrets`` are the names of variables that are passed from the environment if they are set. Sizes are
    in Docker's notation (``16g``). ``shm_size`` is empty if ``ipc`` is the host's; ``memory_swap`` is the sum of memory
    and swap. An empty limit, or 0 ``pids``, means no limit; a ulimit of -1 is unlimited."""

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
    options: ContainerOptions = NONE,
    compiled: tuple[str, int] | None = None,
) -> ContainerSettings:
    """The container that serves ``recipe`` with ``command`` from ``image``: a repository and a number, or a name
    without a number. For a name without a number, compile caches are not kept, because the name may mean another image
    later. ``compiled`` is the number whose compile caches the container uses instead of its own.

    ``environ`` is the user's environment: HOME, XDG_CACHE_HOME, HF_HOME and HF_HUB_CACHE locate the caches. Raises
    UsageError if ``options`` publish ports of a server that only its own container can reach.
    """
    image_name = image if isinstance(image, str) else f"{image[0]}:{image[1]}"
    folder = "" if isinstance(image, str) else compile_cache(environ, *(compiled or image))
    host = command.host or ""
    if options.publish and (host in {"localhost", "::1"} or host.startswith("127.")):
        message = f"the server listens on {host}: only its own container can reach it, even if ports are published"
        raise UsageError(message, hint="`--host 0.0.0.0` makes it listen on all addresses of its container")
    gpus = serving.gpus == "all"
    network = "bridge" if options.publish else serving.network
    ports = () if network == "host" else with_server(options.publish, command.port)
    published = of_server(ports, command.port)
    name = service_name(recipe.name)
    labels = {
        LABEL: name,
        f"{LABEL}.image": image_name,
        f"{LABEL}.recipe": recipe.file,
        f"{LABEL}.model": recipe.model or command.model or "",
        f"{LABEL}.names": json.dumps(command.served),
        f"{LABEL}.host": host,
        f"{LABEL}.port": str((published.port if published else command.port) or ""),
        PORT_INSIDE: str(published.inside) if published and published.port != published.inside else "",
        ADDRESS: published.address if published else "",
        GPU_MEMORY: str((read_gpu_memory(command.words) if gpus else None) or ""),
        COMPILED: folder,
    }
    wanted = [name for name, value in options.env.items() if value is None]
    return ContainerSettings(
        name=container_name(name),
        image=image_name,
        argv=after_steps(command.before, command.argv),
        env=with_variables(environment(command, serving), options),
        secrets=(*wanted, *(name for name in SECRETS if name not in command.env and name not in options.env)),
        gpus=gpus,
        network=network,
        ports=ports,
        ipc=serving.ipc,
        shm_size="" if serving.ipc == "host" else serving.shm_size,
        mounts=merged(_own_mounts(environ, folder), options.volumes),
        labels={key: value for key, value in labels.items() if value},
        health=HealthCheck(probe(reached_at(command.host), command.port)) if command.port is not None else None,
        # Loaders pin memory for the GPU, and open many files at once.
        ulimits={"memlock": -1, "nofile": OPEN_FILES} if gpus else {},
        memory=options.memory,
        keep_entrypoint=serving.keep_entrypoint,
    )


def _own_mounts(environ: Mapping[str, str], compiled: str) -> list[Mount]:
    """The caches of Hugging Face, and the compile caches in the folder ``compiled``, if given."""
    home, hub = hub_cache.home(environ), hub_cache.hub(environ)
    inside = f"{HOME}/.cache/huggingface"
    mounts = [Mount(str(home), inside), *([Mount(str(hub), f"{inside}/hub")] if hub != home / "hub" else [])]
    if compiled:
        mounts += [Mount(f"{compiled}/{name}", f"{HOME}/{place}") for name, place in COMPILE_CACHES.items()]
    return mounts


def environment(command: ServeCommand, serving: ServeSettings) -> dict[str, str]:
    """The variables of the container that serves with ``command``. The recipe's variables have priority."""
    return {**(GPU_ENVIRONMENT if serving.gpus == "all" else CPU_ENVIRONMENT), **command.env}


def service_name(text: str) -> str:
    """The server's name in commands: ``Qwen3.5-122B (fast)`` becomes ``qwen3-5-122b-fast``."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "model"


def container_name(server: str) -> str:
    """The name of a server's container and compose service: ``vllm-qwen3-5-122b-fast``."""
    return server if server.startswith(_NAME_PREFIX) else f"{_NAME_PREFIX}{server}"


def compile_cache(environ: Mapping[str, str], repository: str, number: int) -> str:
    """The folder on the host with the compile caches of a numbered image."""
    home = environ.get("XDG_CACHE_HOME") or str(PurePosixPath(environ.get("HOME") or HOME, ".cache"))
    return str(PurePosixPath(home, "builder", "compile", repository, str(number)))


def probe(host: str, port: int) -> tuple[str, ...]:
    """The command that ends with 0 in the container if the server answers."""
    return ("python3", "-ISc", _PROBE.format(host=host, port=port))


# earlyoom beside a server, with the figures of the community's launcher: a Spark without free memory freezes. Below 512
# MiB of available memory, earlyoom ends processes of its container, regardless of free swap; below 100 MiB, it kills
# them. It writes a line every minute: https://github.com/rfjakob/earlyoom. The server stays the main process: it gets
# the stop signal, and the container ends with it, so the engine starts it again and `run` notices a crash.

PROGRAM = "earlyoom"
# In the background twice, so that its parent is the container's init, not the server.
_EARLYOOM_SCRIPT = """\
command -v earlyoom >/dev/null || { echo 'earlyoom is not in this image' >&2; exit 127; }
( earlyoom -M 524288,102400 -s 100 -r 60 & )
exec "$@\""""


def earlyoom_beside(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The argument vector that runs ``argv`` with earlyoom beside it."""
    return ("sh", "-c", _EARLYOOM_SCRIPT, "sh", *argv)

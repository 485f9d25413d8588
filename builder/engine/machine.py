"""The machine of an engine: programs on it, its record, its resources for building, and the engine's versions."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from builder.base import machine_record, processes
from builder.base.errors import BuilderError, EngineError, NodeError
from builder.base.processes import tied_to_parent
from builder.base.values import dataclass
from builder.engine import client, containers
from builder.engine.client import Endpoint, environment, request

# Programs run on the machine of an engine: this machine, or another machine by ssh.

# Nobody can type a password or confirm a host key here, so ssh fails instead of asking.
_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
HERE = "unix://"
_SSH_FAILED = 255


def is_here(host: str) -> bool:
    return host.startswith(HERE)


def run_on_machine(
    environ: Mapping[str, str], host: str, script: str, arguments: Sequence[str] = (), timeout: float = 60
) -> str:
    """Runs ``script`` with ``sh`` on the machine of the engine at ``host`` and returns its output. ``arguments`` must
    be plain words, since ssh passes them to a shell. Raises NodeError."""
    command = ["sh", "-s", "--", *arguments]
    if is_here(host):
        argv = command
    elif urlsplit(host).scheme == "ssh":
        argv = client.ssh_argv(host, _OPTIONS, command)
    else:
        raise NodeError(
            f"the engine of the node is at {host}, but builder can run commands on a node only over ssh",
            hint="set the engine of the node to ssh://USER@HOST in builder.yaml",
        )
    try:
        done = subprocess.run(
            [*tied_to_parent(), *argv],
            input=script,
            capture_output=True,
            text=True,
            errors="replace",
            env=dict(environ),
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        if is_here(host):
            raise NodeError(f"a command on this machine did not end within {timeout:g} s") from None
        hint = f"check that the machine is on and not out of memory: `ssh {_login(host)}`"
        raise NodeError(f"{_name(host)} did not answer within {timeout:g} s", hint=hint) from None
    except FileNotFoundError as error:
        message = f"this machine has no program `{error.filename}`"
        raise NodeError(message, hint="install the program, then run the command again") from None
    if done.returncode:
        raise _error(host, done)
    return done.stdout


def _error(host: str, done: subprocess.CompletedProcess[str]) -> NodeError:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    reason = lines[-1] if lines else f"the command ended with exit code {done.returncode}"
    if done.returncode != _SSH_FAILED or is_here(host):
        return NodeError(f"{_name(host)}: {reason}")
    login = _login(host)
    if re.search("(?i)permission denied|host key|authentication", done.stderr):
        hint = (
            f"run `ssh {login}` once, and compare the key that it shows; if it asks for a password: "
            f"`ssh-copy-id {login}`"
        )
    else:
        hint = f"check that the machine is on, and that builder.yaml has its address: `ssh {login}` must work"
    return NodeError(f"ssh to {_name(host)} fails: {reason}", hint=hint)


def _name(host: str) -> str:
    return "this machine" if is_here(host) else urlsplit(host).hostname or host


def _login(host: str) -> str:
    address = urlsplit(host)
    user = f"{address.username}@" if address.username else ""
    return f"{f'-p {address.port} ' if address.port else ''}{user}{address.hostname}"


# The record of the machine. On this machine its files are read directly. Its programs have less than a tenth of a
# second, so that a start does not wait. On another machine ssh or a short-lived container reads the same files.

PROGRAMS_SECONDS = 0.07
_FAR_SECONDS, _CONTAINER_SECONDS = 20.0, 60.0
_CUT = "\x1e"
_LARGEST_FILE = 65536


def read_machine(
    endpoint: Endpoint, environ: Mapping[str, str], image: str = "", seconds: float = PROGRAMS_SECONDS
) -> machine_record.Machine:
    """The record of the engine's machine. If the engine is neither on this machine nor reached by ssh, a container of
    ``image`` reads the record. Unreadable parts are empty. ``BUILDER_ROOT`` replaces the folder /."""
    version = _engine_version(endpoint)
    platform = ""
    outputs: dict[str, str] = {}
    if is_here(endpoint.host):
        name = os.uname().machine
        platform = "linux/" + {"x86_64": "amd64", "aarch64": "arm64"}.get(name, name)
        outputs = _outputs(environ, seconds)
    return machine_record.parse_machine(read_machine_files(endpoint, environ, image), outputs, platform, version)


def read_machine_files(endpoint: Endpoint, environ: Mapping[str, str], image: str = "") -> dict[str, str]:
    """The texts of the files in the record of the engine's machine; no program is started. Empty if they cannot be
    read."""
    if is_here(endpoint.host):
        root = Path(environ.get("BUILDER_ROOT") or "/")
        return machine_record.read_files({name: root / name for name in ("proc", "sys", "etc")})
    with suppress(BuilderError):
        if urlsplit(endpoint.host).scheme == "ssh":
            script = record_script(machine_record.PLACES)
            return record_files(run_on_machine(environ, endpoint.host, script, timeout=_FAR_SECONDS))
        if image:
            return read_in_container(endpoint, image)
    return {}


def read_in_container(endpoint: Endpoint, image: str) -> dict[str, str]:
    """The texts of the files of an engine's machine, read in a container of ``image``. A container without a GPU has
    the machine's /proc and /sys. Its /etc is the image's, and is left out."""
    places = [place for place in machine_record.PLACES if not place.startswith("etc/")]
    with containers.running(endpoint, image, labels={"builder.serve.check": "machine"}) as container:
        return record_files(container.run(["sh", "-c", record_script(places)], timeout=_CONTAINER_SECONDS).output)


def _engine_version(endpoint: Endpoint) -> str:
    try:
        return f"Docker {request(endpoint, 'GET', '/version', timeout=10).get('Version', '')}"
    except EngineError:
        return ""


def _outputs(environ: Mapping[str, str], seconds: float) -> dict[str, str]:
    """The output of each program; empty if the program fails or does not end within ``seconds``."""

    def run(argv: Sequence[str]) -> str:
        with suppress(OSError, subprocess.TimeoutExpired, subprocess.CalledProcessError):
            return subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=dict(environ),
                text=True,
                errors="replace",
                timeout=seconds,
                check=True,
            ).stdout
        return ""

    programs = machine_record.PROGRAMS
    return dict(zip(programs, processes.in_parallel(run, programs.values(), len(programs)), strict=True))


def record_script(places: Sequence[str]) -> str:
    """A script that prints, for each file, a line with its path and the first part of its content."""
    return (
        f"cd ${{BUILDER_ROOT:-/}} && for file in {' '.join(places)}; do"
        f' [ -r "$file" ] && printf "\\036%s\\n" "$file" && head -c {_LARGEST_FILE} "$file"; done; :'
    )


def record_files(output: str) -> dict[str, str]:
    """The files in the output of a `record_script`, by path. Other output may come before it."""
    pairs = (part.partition("\n")[::2] for part in output.split(_CUT)[1:])
    return {path: text for path, text in pairs if text.strip()}


# The machine's resources for building.

_MEMINFO = Path("/proc/meminfo")


def read_build_machine(endpoint: Endpoint) -> tuple[int, int | None, int, str] | None:
    """Returns the number of processors of the engine's machine, its free (None if unknown) and total memory in bytes,
    and the folder of the engine's images if it is on this machine. None if another machine builds."""
    if endpoint.builds_elsewhere:
        return None
    info = request(endpoint, "GET", "/info", timeout=30)
    total, free, data_root = int(info.get("MemTotal") or 0), None, ""
    sizes = processes.sizes(processes.text(_MEMINFO))
    # A socket of this machine may lead to a virtual machine.
    if endpoint.host.startswith("unix://") and sizes.get("MemTotal") == total and "MemAvailable" in sizes:
        free, data_root = sizes["MemAvailable"], images_folder(info)
    return int(info.get("NCPU") or 1), free, total, data_root


# A containerd that the system runs, as Docker's packages install it, keeps the images of the containerd store in its
# own folder, whatever folder Docker's `data-root` names: https://github.com/moby/moby/issues/50517
_CONTAINERD, _CONTAINERD_ROOT = "/run/containerd/containerd.sock", "/var/lib/containerd"
_CONTAINERD_SETTINGS = Path("/etc/containerd/config.toml")


def images_folder(info: Mapping[str, Any], settings: Path = _CONTAINERD_SETTINGS) -> str:
    """Returns the folder of the images of an engine on this machine, from the engine's ``info`` and containerd's
    settings."""
    import tomllib

    address = str((info.get("Containerd") or {}).get("Address") or "")
    if _store(info) == "classic" or address.removeprefix("/var") != _CONTAINERD:
        return str(info.get("DockerRootDir") or "")
    with suppress(OSError, ValueError):  # without settings that can be read, containerd has its default
        return str(tomllib.loads(settings.read_text(encoding="utf-8")).get("root") or _CONTAINERD_ROOT)
    return _CONTAINERD_ROOT


def _store(info: Mapping[str, Any]) -> Literal["containerd", "classic"]:
    # Only the containerd store reports the snapshotter as a driver type.
    return "containerd" if "io.containerd.snapshotter" in str(info.get("DriverStatus")) else "classic"


def free_disk(data_root: str) -> int | None:
    """Returns the free bytes on the disk of a folder of images; None if the folder is unknown or cannot be read."""
    import shutil

    try:
        return shutil.disk_usage(data_root).free if data_root else None
    except OSError:
        return None


# The versions of the engine and of buildx, and the oldest supported ones.


def query_buildx(endpoint: Endpoint, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str] | None:
    """Runs buildx for this engine. None if buildx does not start, or does not end within ``timeout`` seconds."""
    argv = [*endpoint.buildx, *arguments]
    environ = {**os.environ, **environment(endpoint)}
    try:
        return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


# 23.0 is the first engine that records the provenance of a build (BuildKit 0.11).
OLDEST_ENGINE = (23, 0)
# 0.14 is the first buildx that writes a build's materials into the metadata file:
# https://github.com/docker/buildx/pull/2280
OLDEST_BUILDX = (0, 14)
INSTALL_HINT = (
    "Debian and Ubuntu: Docker's own packages docker-ce and docker-buildx-plugin "
    "(https://docs.docker.com/engine/install/); DGX OS: `sudo apt install docker-ce docker-buildx-plugin`; "
    "or a private engine: `scripts/engine up`"
)
_BUILDX_WAIT = 20.0


@dataclass(frozen=True)
class Versions:
    """The versions of an engine and of buildx; the engine's ``platform`` (``linux/arm64``); the folder of its images
    (``data_root``, empty on another machine); and whether it supports NVIDIA GPUs (``nvidia``) and limits of memory and
    swap."""

    engine: str
    buildx: str
    store: Literal["containerd", "classic"]
    platform: str
    data_root: str
    nvidia: bool
    limits_memory: bool


def require_engine(endpoint: Endpoint) -> str:
    """The engine's version and platform, as a text. Raises EngineError if the engine does not answer or is too old."""
    version = _version(endpoint)
    return f"Docker {version.get('Version')} on {version.get('Os')}/{version.get('Arch')}"


def require_supported(endpoint: Endpoint) -> Versions:
    """Returns the versions. Raises EngineError, with a hint on what to install, if anything is missing or too old."""
    version = _version(endpoint)
    buildx_version = buildx(endpoint)
    if _numbers(buildx_version) < OLDEST_BUILDX:
        oldest = ".".join(map(str, OLDEST_BUILDX))
        message = f"docker buildx is {buildx_version}; {oldest} is the oldest supported version"
        raise EngineError(message, hint=INSTALL_HINT)
    info = request(endpoint, "GET", "/info", timeout=30)
    return Versions(
        engine=str(version.get("Version", "")),
        buildx=buildx_version,
        store=_store(info),
        platform=f"{version.get('Os')}/{version.get('Arch')}",
        data_root=images_folder(info) if is_here(endpoint.host) else "",
        nvidia=_nvidia(info),
        limits_memory=bool(info.get("MemoryLimit", True)) and bool(info.get("SwapLimit", True)),
    )


def has_nvidia(endpoint: Endpoint) -> bool:
    return _nvidia(request(endpoint, "GET", "/info", timeout=30))


def _nvidia(info: Mapping[str, Any]) -> bool:
    # Since 28.2, engines list the devices of CDI, the Container Device Interface.
    devices = [str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or ()]
    return "nvidia" in (info.get("Runtimes") or {}) or any(each.startswith("nvidia.com/gpu=") for each in devices)


def platform(endpoint: Endpoint) -> str:
    version = request(endpoint, "GET", "/version", timeout=10)
    return f"{version.get('Os')}/{version.get('Arch')}"


def buildx(endpoint: Endpoint) -> str:
    """Returns the version of buildx. Raises EngineError if buildx is missing."""
    result = query_buildx(endpoint, "version", timeout=_BUILDX_WAIT)
    # `github.com/docker/buildx v0.29.1 a32761a…`. Some distributions leave out the v, or extend the number.
    match = re.search(r"\bv?(\d+\.\d+\S*)", result.stdout) if result else None
    if not result or result.returncode or not match:
        message = f"`{' '.join(endpoint.buildx)}` does not run: building needs Docker's buildx plugin"
        raise EngineError(message, hint=INSTALL_HINT)
    return match[1]


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the leading numbers of a version; (0,), which is older than every version, if there are no numbers."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else (0,)


def _version(endpoint: Endpoint) -> dict[str, Any]:
    version: dict[str, Any] = request(endpoint, "GET", "/version", timeout=10)
    engine = str(version.get("Version", ""))
    if _numbers(engine) < OLDEST_ENGINE:
        message = f"the Docker engine at {endpoint.host} is {engine}; 23.0 is the oldest supported version"
        raise EngineError(message, hint=INSTALL_HINT)
    return version

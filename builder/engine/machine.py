"""The machine of an engine: programs on it, its record, and what it has to build with."""

from __future__ import annotations

import platform
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builder.base import machine_record, processes
from builder.base.errors import BuilderError, EngineError, NodeError
from builder.base.machine_record import Machine
from builder.base.processes import tied_to_parent
from builder.engine import client, containers
from builder.engine.client import request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.engine.client import Endpoint


# Programs on the machine of an engine: on this one, or by ssh.

# Nothing can be typed here: a password, or a question about a host key, is an answer.
_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
HERE = "unix://"
_SSH_FAILED = 255


def is_here(host: str) -> bool:
    return host.startswith(HERE)


def run_on_machine(
    environ: Mapping[str, str], host: str, script: str, arguments: Sequence[str] = (), timeout: float = 60
) -> str:
    """Runs ``script`` with ``sh`` on the machine of the engine at ``host`` and returns its output. ``arguments`` must
    be plain words, as ssh gives them to a shell. Raises NodeError."""
    command = ["sh", "-s", "--", *arguments]
    if is_here(host):
        argv = command
    elif urlsplit(host).scheme == "ssh":
        argv = client.ssh_argv(host, _OPTIONS, command)
    else:
        raise NodeError(
            f"its engine is reached at {host}, but builder cannot run commands on that machine",
            hint="name the node in builder.yaml as ssh://USER@HOST",
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
        raise NodeError(f"{_name(host)} had not answered after {timeout:g} s") from None
    except FileNotFoundError as error:
        raise NodeError(f"this machine has no program `{error.filename}`") from None
    if done.returncode:
        raise _error(host, done)
    return done.stdout


def _error(host: str, done: subprocess.CompletedProcess[str]) -> NodeError:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    reason = lines[-1] if lines else f"it ended with {done.returncode}"
    if done.returncode != _SSH_FAILED or is_here(host):
        return NodeError(f"{_name(host)}: {reason}")
    login = _login(host)
    hint = (
        f"run `ssh {login}` once: compare the key that it shows, or use `ssh-copy-id {login}` if it asks for a password"
    )
    return NodeError(f"ssh to {_name(host)} fails: {reason}", hint=hint)


def _name(host: str) -> str:
    return "this machine" if is_here(host) else urlsplit(host).hostname or host


def _login(host: str) -> str:
    address = urlsplit(host)
    user = f"{address.username}@" if address.username else ""
    return f"{f'-p {address.port} ' if address.port else ''}{user}{address.hostname}"


# The record of the machine. On this machine its files are read, and the programs have a tenth of a second together: a
# start does not wait for them. On another one the same files come through ssh, or a short-lived container.

PROGRAMS_SECONDS = 0.07
_FAR_SECONDS, _CONTAINER_SECONDS = 20.0, 60.0
_CUT = "\x1e"
_LARGEST_FILE = 65536


def read_machine(
    endpoint: Endpoint,
    environ: Mapping[str, str],
    image: str = "",
    seconds: float = PROGRAMS_SECONDS,
) -> Machine:
    """The record of the engine's machine. A machine that is reached neither here nor by ssh is read in a container of
    ``image``. Whatever cannot be read is empty in it. ``BUILDER_ROOT`` names another folder than / to read in, on a
    machine that keeps its files elsewhere."""
    version = _engine_version(endpoint)
    if is_here(endpoint.host):
        architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        outputs = _outputs(environ, seconds)
        root = Path(environ.get("BUILDER_ROOT") or "/")
        files = machine_record.read_files({name: root / name for name in ("proc", "sys", "etc")})
        return machine_record.parse_machine(files, outputs, f"linux/{architecture}", version)
    try:
        if urlsplit(endpoint.host).scheme == "ssh":
            files = _files_of(
                run_on_machine(environ, endpoint.host, _script(machine_record.PLACES), timeout=_FAR_SECONDS)
            )
        elif image:
            files = read_in_container(endpoint, image)
        else:
            return Machine(engine=version)
    except BuilderError:
        return Machine(engine=version)
    return machine_record.parse_machine(files, {}, "", version)


def read_in_container(endpoint: Endpoint, image: str) -> dict[str, str]:
    """The texts of the files of an engine's machine, read in a container of ``image``: its /proc and /sys are the
    machine's own as long as it asks for no GPU, and its /etc is the image's."""
    places = [place for place in machine_record.PLACES if not place.startswith("etc/")]
    with containers.running(endpoint, image, labels={"builder.serve.check": "machine"}) as container:
        return _files_of(container.run(["sh", "-c", _script(places)], timeout=_CONTAINER_SECONDS).output)


def _engine_version(endpoint: Endpoint) -> str:
    try:
        return f"Docker {request(endpoint, 'GET', '/version', timeout=10).get('Version', '')}"
    except EngineError:
        return ""


def _outputs(environ: Mapping[str, str], seconds: float) -> dict[str, str]:
    """The output of each of the programs that ends by itself, without an error, within so many ``seconds``."""
    end = time.monotonic() + seconds
    started = {}
    for name, argv in machine_record.PROGRAMS.items():
        try:
            started[name] = subprocess.Popen(
                [*argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=dict(environ),
                text=True,
                errors="replace",
            )
        except OSError:  # it is not there
            continue
    outputs = {}
    for name, process in started.items():
        with process:
            try:
                output, _ = process.communicate(timeout=max(end - time.monotonic(), 0.001))
            except subprocess.TimeoutExpired:
                process.kill()
                continue
            if process.returncode == 0:
                outputs[name] = output
    return outputs


def _script(places: Sequence[str]) -> str:
    """A script that prints the beginning of each file, after a line with its path."""
    return (
        f"cd ${{BUILDER_ROOT:-/}} && for file in {' '.join(places)}; do"
        f' [ -r "$file" ] && printf "\\036%s\\n" "$file" && head -c {_LARGEST_FILE} "$file"; done; :'
    )


def _files_of(output: str) -> dict[str, str]:
    pairs = (part.partition("\n")[::2] for part in output.split(_CUT)[1:])
    return {path: text for path, text in pairs if text.strip()}


# What the machine has to build with.

_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True)
class MachineResources:
    """The resources of a machine: processors, bytes of memory in all, and those that are ``free``, None if that
    cannot be seen. ``data_root`` is the folder of the engine's images if it is on this machine, else empty."""

    processors: int
    total: int
    free: int | None
    data_root: str


def read_build_machine(endpoint: Endpoint, meminfo: Path = _MEMINFO) -> MachineResources | None:
    """Returns the resources of the machine that builds; None if another one than the engine's does."""
    if endpoint.builds_elsewhere:
        return None
    info = request(endpoint, "GET", "/info", timeout=30)
    total, free, data_root = int(info.get("MemTotal") or 0), None, ""
    sizes = processes.sizes(processes.text(meminfo))
    # A socket of this machine may lead into a virtual machine.
    if endpoint.host.startswith("unix://") and sizes.get("MemTotal") == total and "MemAvailable" in sizes:
        free, data_root = sizes["MemAvailable"], str(info.get("DockerRootDir") or "")
    return MachineResources(int(info.get("NCPU") or 1), total, free, data_root)


def free_disk(data_root: str) -> int | None:
    """Returns the bytes that are free in a folder of images; None if it cannot be looked at."""
    import shutil

    try:
        return shutil.disk_usage(data_root).free if data_root else None
    except OSError:
        return None

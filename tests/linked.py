"""Machines that are linked like Sparks. Each is an engine with its own network, reached by a real ssh.

Stand-ins for hardware: virtual Ethernet pairs, with the interface names of a DGX Spark, replace the cable. Files that
name the RoCE device of each interface replace /sys. There is no RoCE. This machine and the others reach each other. The
others reach one another only if this machine's firewall lets a bridge forward.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.engine import images
from builder.engine.client import environment
from tests import projects, registries, shared, spark_proc
from tests.conftest import BASE
from tests.moving.nodes import machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.engine.client import Endpoint


INTERFACE, SECOND = "enp1s0f1np1", "enP2p1s0f1np1"
_SSHD = f"""\
FROM {BASE}
RUN apt-get update -q && apt-get install -qy --no-install-recommends openssh-server iproute2 && mkdir -p /run/sshd
"""
_SSHD_CONFIG = """\
ListenAddress {address}
HostKey /keys/host
AuthorizedKeysFile /keys/user.pub
StrictModes no
PermitRootLogin prohibit-password
SetEnv HOME={home} DOCKER_HOST=unix:///node/docker.sock {folders}
"""
_FOLDERS = "BUILDER_SYSFS=/node-sys BUILDER_DEV=/node-dev BUILDER_ROOT=/node-root"


@dataclass(frozen=True)
class Machine:
    """A machine: its name, its address on the link, its engine on this machine, and its own folder."""

    name: str
    address: str
    node: registries.Node
    folder: Path

    @property
    def engine(self) -> str:
        """The address of its engine in builder.yaml."""
        return f"ssh://root@{self.address}"

    @property
    def endpoint(self) -> Endpoint:
        """Its engine, reached without ssh."""
        return self.node.endpoint

    def in_network(self, *argv: str) -> str:
        """The output of a program that runs in the machine's network."""
        done = subprocess.run([*self.node.prefix, *argv], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout


@dataclass(frozen=True)
class Linked:
    """Machines on one link, and the environment of a user who may log in to them. ``gateway`` is this machine's own
    address on the link."""

    machines: tuple[Machine, ...]
    environ: dict[str, str]
    bridge: str
    gateway: str


@contextmanager
def linked(endpoint: Endpoint, folder: Path, number: int, count: int) -> Iterator[Linked]:
    """Makes ``count`` machines and removes them when the block ends. ``number`` must differ between tests: it selects
    the subnets."""
    bridge, gateway = f"lk{number}{shared.mark()}", f"10.{193 + number}.{int(shared.mark(), 16)}"
    with ExitStack() as stack:
        stack.callback(_quietly, "ip", "link", "delete", bridge)
        _run("ip", "link", "add", "name", bridge, "type", "bridge")
        _run("ip", "address", "add", f"{gateway}.1/28", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        _keys(folder)
        image = stack.enter_context(_sshd_image(endpoint, folder))
        machines = tuple(
            stack.enter_context(_machine(endpoint, folder, image, bridge, f"{gateway}.{rank + 2}", rank))
            for rank in range(count)
        )
        wrapper = folder / "bin/ssh"
        settings = {"IdentityFile": folder / "keys/user", "User": "root", "LogLevel": "ERROR"}
        settings |= {"StrictHostKeyChecking": "no", "UserKnownHostsFile": "/dev/null"}
        projects.write(folder / "ssh_config", "".join(f"{key} {value}\n" for key, value in settings.items()))
        text = f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n'
        projects.write(wrapper, text)
        wrapper.chmod(0o755)
        environ = {"PATH": f"{wrapper.parent}:{os.environ['PATH']}"}
        for each in machines:
            _await_login(wrapper, each)
        yield Linked(machines, environ, bridge, f"{gateway}.1")


@contextmanager
def _sshd_image(endpoint: Endpoint, folder: Path) -> Iterator[str]:
    name = f"{shared.unique_name()}-sshd:1"
    projects.write(folder / "image/Dockerfile", _SSHD)
    argv = [*endpoint.buildx, "build", "-q", "--provenance=false", "-t", name, str(folder / "image")]
    _run(*argv, environ={**os.environ, **environment(endpoint)})
    try:
        yield name
    finally:
        images.remove_image(endpoint, name)


def _keys(folder: Path) -> None:
    (folder / "keys").mkdir(parents=True)
    for name in ("host", "user"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "keys" / name))


@contextmanager
def _machine(endpoint: Endpoint, folder: Path, image: str, bridge: str, address: str, rank: int) -> Iterator[Machine]:
    name = f"{bridge}-{rank}"
    with ExitStack() as stack:
        stack.callback(_quietly, "ip", "netns", "delete", name)
        _run("ip", "netns", "add", name)
        prefix = ("nsenter", f"--net=/run/netns/{name}", "--")
        second = address.rsplit(".", 1)[0] + f".{128 + rank}/29"
        for number, (interface, own) in enumerate({INTERFACE: f"{address}/28", SECOND: second}.items()):
            outside = f"{bridge}-{rank}{number}"
            _run("ip", "link", "add", outside, "type", "veth", "peer", "name", interface, "netns", name)
            # The second interface is up but connected to nothing: nothing is sent over it.
            _run("ip", "link", "set", outside, "up", *(("master", bridge) if not number else ()))
            _run(*prefix, "ip", "address", "add", own, "dev", interface)
            _run(*prefix, "ip", "link", "set", interface, "up")
        _run(*prefix, "ip", "link", "set", "lo", "up")
        node = stack.enter_context(registries.node("own0", f"10.99.{rank}.1/24", prefix=prefix))
        own_folder = folder / f"machine{rank}"
        machine.sysfs(own_folder / "sys", *machine.PAIR)
        (own_folder / "dev/infiniband").mkdir(parents=True)
        (own_folder / "dev/infiniband/uverbs0").touch()
        (own_folder / "home").mkdir()
        spark_proc.write_whole(own_folder / "proc")
        made = Machine(f"machine{rank}", address, node, own_folder)
        _serve_ssh(endpoint, made, image, folder)
        yield made


def _serve_ssh(endpoint: Endpoint, made: Machine, image: str, folder: Path) -> None:
    """Starts sshd in a container of the machine's engine, in the machine's network, with access to the engine."""
    programs = Path(made.node.environ["BUILDER_ENGINE_HOME"])
    docker = str(programs / "bin/docker")
    saved = subprocess.run([docker, "-H", endpoint.host, "save", image], check=True, capture_output=True).stdout
    subprocess.run([docker, "-H", made.node.host, "load"], input=saved, check=True, capture_output=True)
    config = made.folder / "sshd_config"
    projects.write(config, _SSHD_CONFIG.format(address=made.address, home=made.folder / "home", folders=_FOLDERS))
    mounts = {
        f"{folder}/keys": "/keys:ro",
        str(config): "/etc/ssh/sshd_config:ro",
        made.node.environ["BUILDER_ENGINE_RUN"]: "/node",
        str(programs / "root/usr/bin/docker"): "/usr/bin/docker:ro",
        f"{made.folder}/dev": "/node-dev",
        f"{made.folder}/proc": "/node-root/proc:ro",
        f"{made.folder}/home": f"{made.folder}/home",
        f"{made.folder}/sys": "/node-sys:ro",
    }
    volumes = [word for source, target in mounts.items() for word in ("-v", f"{source}:{target}")]
    argv = [docker, "-H", made.node.host, "run", "-d", "--network", "host", "--hostname", made.name, "--name", "sshd"]
    _run(*argv, *volumes, image, "/usr/sbin/sshd", "-D", "-e")


def _await_login(wrapper: Path, made: Machine) -> None:
    end = time.monotonic() + 120
    while True:
        argv = [str(wrapper), made.address, "docker version"]
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            return
        assert time.monotonic() < end, done.stderr
        time.sleep(0.2)


def _run(*argv: str, environ: dict[str, str] | None = None) -> None:
    done = subprocess.run(argv, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, f"{argv}: {done.stderr}"


def _quietly(*argv: str) -> None:
    subprocess.run(argv, capture_output=True)

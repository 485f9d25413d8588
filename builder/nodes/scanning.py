"""A search for other DGX Sparks in the network of a link: hosts that take ssh without a password, and whose
``nvidia-smi`` says that they have a GB10."""

from __future__ import annotations

import json
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from builder.errors import NodeError, UsageError
from builder.nodes import machine_shell

if TYPE_CHECKING:
    from collections.abc import Mapping
    from ipaddress import IPv4Interface

GPU = "NVIDIA GB10"
# An address that a machine gives itself (169.254.0.0/16) is in a network of 65,000: only neighbours are tried there.
_MOST_HOSTS = 1024
_CONNECTIONS = 64
_CONNECT_SECONDS = 1.0
_SSH_PORT = 22
_GPU_SCRIPT = "nvidia-smi --query-gpu=name --format=csv,noheader\n"


@dataclass(frozen=True)
class ScannedHost:
    """A host that answers on the port of ssh. ``problem`` says why it is no node, and is empty for one."""

    address: str
    problem: str = ""

    @property
    def engine(self) -> str:
        """Its engine, as builder.yaml names it."""
        return f"ssh://{self.address}"


def scan(environ: Mapping[str, str], own: IPv4Interface, interface: str) -> tuple[ScannedHost, ...]:
    """Looks for nodes in the network of ``own``, this machine's address on ``interface``. Raises UsageError where that
    network is too large and this machine does not know its neighbours in it."""
    if own.network.num_addresses > _MOST_HOSTS:
        addresses = _neighbours(environ, interface)
        if not addresses:
            raise UsageError(
                f"{own.network} has too many addresses to try, and this machine knows no neighbour on {interface}",
                hint="ping the other machine once, or name it in builder.yaml",
            )
    else:
        addresses = [str(address) for address in own.network.hosts() if address != own.ip]
    with ThreadPoolExecutor(max_workers=_CONNECTIONS) as pool:
        answering = [
            address for address, answers in zip(addresses, pool.map(_answers, addresses), strict=True) if answers
        ]
        return tuple(pool.map(partial(_look, environ), answering))


def _answers(address: str) -> bool:
    with suppress(OSError), socket.create_connection((address, _SSH_PORT), timeout=_CONNECT_SECONDS):
        return True
    return False


def _look(environ: Mapping[str, str], address: str) -> ScannedHost:
    try:
        gpus = machine_shell.run(environ, f"ssh://{address}", _GPU_SCRIPT, timeout=30)
    except NodeError as error:
        return ScannedHost(address, f"{error.message}{f'; {error.hint}' if error.hint else ''}")
    if GPU not in (line.strip() for line in gpus.splitlines()):
        return ScannedHost(address, f"its GPU is {gpus.strip() or 'unknown'}, not {GPU}")
    return ScannedHost(address)


def _neighbours(environ: Mapping[str, str], interface: str) -> list[str]:
    """The hosts on ``interface`` that the kernel has heard of."""
    argv = ["ip", "-j", "-4", "neighbour", "show", "dev", interface]
    done = subprocess.run(argv, capture_output=True, text=True, env=dict(environ), check=False)
    try:
        entries = json.loads(done.stdout or "[]")
    except ValueError:
        return []
    return [entry["dst"] for entry in entries if "lladdr" in entry]

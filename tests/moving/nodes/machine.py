"""Stands in for a DGX Spark's network: a program and files that say what its own would, with links of our choice."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from builder.moving import machines
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path

    from builder.moving.machines import MachineFacts


# Every device of a DGX Spark with its interface.
LINKS = {
    "rocep1s0f0": "enp1s0f0np0",
    "rocep1s0f1": "enp1s0f1np1",
    "roceP2p1s0f0": "enP2p1s0f0np0",
    "roceP2p1s0f1": "enP2p1s0f1np1",
}
PAIR = ("rocep1s0f1", "roceP2p1s0f1")


def addresses(up: dict[str, str], down: tuple[str, ...] = ()) -> str:
    """What `ip -j address` prints: the interfaces that are up with their address (ADDRESS/LENGTH, or nothing)."""
    entries: list[dict[str, object]] = [
        {
            "ifname": name,
            "operstate": "UNKNOWN" if name == "lo" else "UP",
            "flags": ["UP"],
            "addr_info": [_info(address)] if address else [],
        }
        for name, address in {"lo": "127.0.0.1/8", **up}.items()
    ]
    return json.dumps([*entries, *({"ifname": name, "operstate": "DOWN", "addr_info": []} for name in down)])


def _info(address: str) -> dict[str, object]:
    local, _, length = address.partition("/")
    return {"family": "inet", "local": local, "prefixlen": int(length)}


def facts(
    up: dict[str, str], links: tuple[str, ...], *, down: tuple[str, ...] = (), verbs: bool = True
) -> MachineFacts:
    """The facts of a machine on which these interfaces and links are up."""
    lines = [
        *("time 1000.0", "name spark1.lan"),
        *(("verbs uverbs0",) if verbs else ()),
        *(f"link {device} {name} {'up' if device in links else 'down'}" for device, name in LINKS.items()),
        f"addresses {addresses(up, down)}",
    ]
    return machines.parse_facts("\n".join(lines), 999.0, 1001.0)


def network(folder: Path, links: tuple[str, ...], up: dict[str, str]) -> dict[str, str]:
    """A stand-in for `ip` in the folder ``bin`` of ``folder``, and the kernel's files where these devices are up;
    returns the variable that names the folder of those."""
    projects.write(folder / "bin/ip", f"#!/bin/sh\nprintf %s {shlex.quote(addresses(up))}\n")
    (folder / "bin/ip").chmod(0o755)
    return sysfs(folder / "sys", *links)


def sysfs(folder: Path, *up: str) -> dict[str, str]:
    """Writes /sys/class/infiniband as the kernel has it where these devices are up."""
    for device, name in LINKS.items():
        state = "up" if device in up else "down"
        projects.write(folder / f"class/infiniband/{device}/device/net/{name}/operstate", f"{state}\n")
    return {"BUILDER_SYSFS": str(folder)}

"""The choice of a node's settings for serving together with others, from what its machine says.

A DGX Spark has two sockets of a ConnectX-7, and each is two devices to the system. One cable, to another Spark or to a
switch, brings two links up; three Sparks in a ring bring up all four. See the NVIDIA DGX Spark playbooks
(https://build.nvidia.com/spark/connect-two-sparks) and NCCL's environment variables
(https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product
from typing import TYPE_CHECKING

from builder.definitions.recipes import cluster_network

if TYPE_CHECKING:
    from builder.nodes.machine_facts import MachineFacts, NetworkInterface

_PAIR = 2
# The Ethernet and the Wi-Fi interface of a DGX Spark, over which a ring coordinates.
_COORDINATION = ("enP7s7", "wlP9s9")


@dataclass(frozen=True)
class LinkChoice:
    """The settings for a node: the interface and the address at which others reach it, its RoCE devices, and more
    environment. ``shape`` says what its links are for; ``problems`` what keeps them from working. ``interface`` and
    ``address`` are empty where none can be chosen."""

    shape: str
    interface: str
    address: str
    rdma: tuple[str, ...]
    env: dict[str, str]
    problems: tuple[str, ...]


def choose(facts: MachineFacts) -> LinkChoice:
    """Chooses the settings that fit the links which are up."""
    up = [link for link in facts.links if link.is_up]
    if not up:
        there = "no link of a RoCE device is up" if facts.links else "it has no RoCE device"
        return LinkChoice("none", "", "", (), {}, (there,))
    is_mesh = len(up) == cluster_network.MESH_DEVICES
    names = _COORDINATION if is_mesh else sorted((link.interface for link in up), key=_is_second)
    interface = next((each for name in names if (each := facts.interface(name)) and each.addresses), None)
    problems = [] if interface else [f"none of {', '.join(names)} has an IPv4 address"]
    problems += address_problems(facts)
    if len(up) not in {1, _PAIR, cluster_network.MESH_DEVICES}:
        problems.append(f"{len(up)} links are up: a pair or a switch has two, a ring of three machines four")
    return LinkChoice(
        shape="mesh" if is_mesh else "pair or switch",
        interface=interface.name if interface else "",
        address=interface.address if interface else "",
        rdma=tuple(link.device for link in up),
        env=dict(cluster_network.MESH) if is_mesh else {},
        problems=tuple(problems),
    )


def address_problems(facts: MachineFacts) -> tuple[str, ...]:
    """Problems with the addresses of the interfaces whose link is up: the first of each socket needs an address, and no
    two interfaces may share a subnet, since the system would answer for both on one."""
    linked = [interface for link in facts.links if link.is_up and (interface := facts.interface(link.interface))]
    missing = [each.name for each in linked if not each.addresses and not _is_second(each.name)]
    problems = [f"{name} is up and has no IPv4 address" for name in missing]
    names = {interface.name for interface in linked}
    others = [each for each in facts.interfaces if each.is_up and each.name != "lo"]
    for first, second in combinations(others, 2):
        shared = _shared_subnet(first, second)
        if shared and names & {first.name, second.name}:
            problems.append(f"{first.name} and {second.name} share the subnet {shared}")
    return tuple(problems)


def _is_second(name: str) -> bool:
    """True for the second interface of a socket, which has a PCI domain in its name: ``enP2p1s0f1np1``."""
    return "P" in name


def _shared_subnet(first: NetworkInterface, second: NetworkInterface) -> str:
    pairs = product((address.network for address in first.addresses), (address.network for address in second.addresses))
    return next(
        (str(min(pair, key=lambda network: network.prefixlen)) for pair in pairs if pair[0].overlaps(pair[1])), ""
    )

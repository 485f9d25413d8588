"""Checks of a node's link: that what builder.yaml says of it is what its machine has."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from builder.diagnosis import Diagnosis
from builder.nodes import link_choice
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.definitions.configuration import Node
    from builder.nodes.machine_facts import MachineFacts, NetworkInterface

_DISCOVER = "`builder nodes discover` fills it in"


def run(node: Node, nodes: Sequence[Node], facts: MachineFacts) -> Iterator[Diagnosis]:
    """Checks the interface, the RoCE devices and the subnets of ``node``, which serves together with ``nodes``."""
    if node.interface is None:
        yield Diagnosis("interface", "warning", "builder.yaml names none", _DISCOVER)
    else:
        yield _interface(node, node.interface, facts)
    yield from _devices(node, facts)
    problems = link_choice.address_problems(facts)
    for problem in problems:
        yield Diagnosis("subnets", "error", problem, "give each interface an address in a subnet of its own (netplan)")
    if not problems:
        yield from _reach(node, nodes, facts)


def _interface(node: Node, name: str, facts: MachineFacts) -> Diagnosis:
    interface = facts.interface(name)
    if interface is None:
        names = [each.name for each in facts.interfaces if each.is_up and each.name != "lo"]
        meant = did_you_mean(name, names, code=True) or f"up are: {', '.join(names) or 'none'}"
        return Diagnosis("interface", "error", f"there is no {name}", meant)
    if not interface.is_up:
        return Diagnosis("interface", "error", f"{name} is down", "is the cable in, and the other end up?")
    return _address(node, interface)


def _address(node: Node, interface: NetworkInterface) -> Diagnosis:
    addresses = [str(address.ip) for address in interface.addresses]
    if not addresses:
        return Diagnosis("interface", "error", f"{interface.name} has no IPv4 address", "give it one (netplan)")
    if node.address and _is_ip(node.address) and node.address not in addresses:
        message = f"{interface.name} has {', '.join(addresses)}, and builder.yaml says {node.address}"
        return Diagnosis("interface", "error", message, _DISCOVER)
    return Diagnosis("interface", "ok", f"{interface.name}, {node.address or addresses[0]}")


def _devices(node: Node, facts: MachineFacts) -> Iterator[Diagnosis]:
    links = {link.device: link for link in facts.links}
    if not node.rdma:
        if node.rdma is None and facts.links:
            yield Diagnosis("devices", "warning", f"builder.yaml names none of {', '.join(links)}", _DISCOVER)
        elif node.rdma is None:
            remedy = "`rdma: []` in builder.yaml says so, and the nodes talk over TCP"
            yield Diagnosis("devices", "warning", "it has no RoCE device", remedy)
        else:
            yield Diagnosis("devices", "ok", "none: over TCP")
        return
    missing = [name for name in node.rdma if name not in links]
    down = [name for name in node.rdma if name in links and not links[name].is_up]
    for name in missing:
        meant = did_you_mean(name, links, code=True) or f"there are: {', '.join(links) or 'none'}"
        yield Diagnosis("devices", "error", f"there is no {name}", meant)
    for name in down:
        message = f"the link of {name} ({links[name].interface}) is down"
        yield Diagnosis("devices", "error", message, "is the cable in, and the other end up?")
    if not facts.verbs:
        remedy = "`sudo modprobe ib_uverbs`, on the node"
        yield Diagnosis("devices", "error", "/dev/infiniband is not there, or empty", remedy)
    elif not missing and not down:
        yield Diagnosis("devices", "ok", ", ".join(node.rdma))


def _reach(node: Node, nodes: Sequence[Node], facts: MachineFacts) -> Iterator[Diagnosis]:
    """Checks that the other nodes are in a subnet of this one's interface."""
    interface = facts.interface(node.interface or "")
    others = [each for each in nodes if each.name != node.name and each.address and _is_ip(each.address)]
    if interface is None or not interface.addresses:
        return
    networks = [address.network for address in interface.addresses]
    for other in others:
        address = ipaddress.ip_address(other.address or "")
        if not any(address in network for network in networks):
            message = f"{other.name} ({other.address}) is in no subnet of {interface.name}"
            yield Diagnosis("subnets", "warning", message, "nodes that serve together need one link")
            return
    yield Diagnosis("subnets", "ok", f"none shared; {', '.join(map(str, networks))}")


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True

"""A node is checked before it builds or serves."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from builder.base.events import Diagnosis
from builder.base.words import did_you_mean
from builder.moving import node_facts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.definitions.configuration import Node
    from builder.moving.node_facts import MachineFacts, SparkFacts


_DISCOVER = "`builder nodes discover` fills it in"


def check_links(node: Node, nodes: Sequence[Node], facts: MachineFacts) -> Iterator[Diagnosis]:
    """Checks the interface, the RoCE devices and the subnets of ``node``, which serves together with ``nodes``."""
    if node.interface is None:
        yield Diagnosis("interface", "warning", "builder.yaml names none", _DISCOVER)
    else:
        yield _interface(node, node.interface, facts)
    yield from _devices(node, facts)
    problems = node_facts.address_problems(facts)
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
    addresses = [str(address.ip) for address in interface.addresses]
    if not addresses:
        return Diagnosis("interface", "error", f"{name} has no IPv4 address", "give it one (netplan)")
    if node.address and _is_ip(node.address) and node.address not in addresses:
        message = f"{name} has {', '.join(addresses)}, and builder.yaml says {node.address}"
        return Diagnosis("interface", "error", message, _DISCOVER)
    return Diagnosis("interface", "ok", f"{name}, {node.address or addresses[0]}")


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


# Checks of a DGX Spark: what would keep an image from being built there, or a model from being served.
# What is known to go wrong with its driver and its kernel, `builder advisories` has.

GIB = 1 << 30
# The images have CUDA 13, which wants this driver: https://docs.nvidia.com/cuda/archive/13.0.0/cuda-toolkit-release-notes/
OLDEST_DRIVER = 580
# A job of FlashInfer's build takes 8 GiB, and the desktop and page cache some more.
MEMORY_TO_BUILD = 16 * GIB
# Swap in use by more than this share of it: what is served waits for the disk.
SWAP_IN_USE = 0.25
_UPDATE = "`sudo apt update && sudo apt full-upgrade`, then restart: DGX OS brings the driver with its own updates"


def check_spark(facts: SparkFacts, architectures: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Checks a Spark; ``architectures`` are the GPU architectures that definitions build for, by definition."""
    yield driver(facts.driver)
    yield kernel(facts.kernel)
    yield from _gpu(facts, architectures)
    yield _memory(facts)
    yield _swap(facts)
    yield _earlyoom(facts)


def driver(version: str) -> Diagnosis:
    """Checks the ``version`` of a GB10's driver; empty where the kernel has not loaded one."""
    if not version:
        return Diagnosis("driver", "error", "the kernel has a GB10, and no version of NVIDIA's driver", _UPDATE)
    major = int(version.partition(".")[0])
    if major < OLDEST_DRIVER:
        message = f"NVIDIA {version}; CUDA 13, which the images have, wants {OLDEST_DRIVER} or later"
        return Diagnosis("driver", "error", message, _UPDATE)
    return Diagnosis("driver", "ok", f"NVIDIA {version}")


def kernel(release: str) -> Diagnosis:
    """Tells the ``release`` of the kernel, as `uname -r` prints it."""
    return Diagnosis("kernel", "ok", release or "unknown")


def _gpu(facts: SparkFacts, architectures: Mapping[str, str]) -> Iterator[Diagnosis]:
    if facts.silence:
        remedy = "`nvidia-smi` by hand shows more; where it hangs, the driver is wedged, and only a restart helps"
        yield Diagnosis(
            "GPU arch", "error", f"nvidia-smi does not tell the compute capability: {facts.silence}", remedy
        )
        return
    others = {
        definition: architecture
        for definition, architecture in architectures.items()
        if not any(part.rstrip("af+PTX") == facts.compute_capability for part in architecture.replace(";", " ").split())
    }
    if others:
        named = ", ".join(f"{definition} ({architecture})" for definition, architecture in others.items())
        message = f"compute capability {facts.compute_capability}, and these definitions build for another GPU: {named}"
        remedy = f"`gpu_arch: {facts.compute_capability}a` under `args:` in their image.yaml"
        yield Diagnosis("GPU arch", "warning", message, remedy)
    else:
        yield Diagnosis("GPU arch", "ok", f"compute capability {facts.compute_capability}")


def _memory(facts: SparkFacts) -> Diagnosis:
    total, available = (facts.sizes.get(name, 0) for name in ("MemTotal", "MemAvailable"))
    message = f"{available / GIB:.0f} of {total / GIB:.0f} GiB available, which the GPU shares"
    if available < MEMORY_TO_BUILD:
        remedy = (
            "`builder status` shows what is served, and `builder stop` ends it: a build from source needs the memory"
        )
        return Diagnosis("memory", "warning", message, remedy)
    return Diagnosis("memory", "ok", message)


def _swap(facts: SparkFacts) -> Diagnosis:
    total, free = (facts.sizes.get(name, 0) for name in ("SwapTotal", "SwapFree"))
    if not total:
        return Diagnosis("swap", "ok", "none: what does not fit into memory is ended, and not slowed down")
    message = f"{(total - free) / GIB:.1f} of {total / GIB:.0f} GiB in use"
    if total - free > SWAP_IN_USE * total:
        remedy = (
            "the machine slows down until it does not answer: end what holds the memory, then "
            "`sudo swapoff -a && sudo swapon -a` brings back what was moved out"
        )
        return Diagnosis("swap", "warning", message, remedy)
    return Diagnosis("swap", "ok", message)


def _earlyoom(facts: SparkFacts) -> Diagnosis:
    if facts.earlyoom:
        return Diagnosis("earlyoom", "ok", "running")
    # https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1358
    return Diagnosis(
        "earlyoom",
        "warning",
        "not running: a Spark whose memory is all in use ends nothing, it freezes",
        "`sudo apt install earlyoom` for all that runs here, builds too; `builder run --earlyoom` for one server",
    )

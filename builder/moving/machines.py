"""The machines of builder.yaml: work on all of them in parallel, and the facts that each machine reports."""

from __future__ import annotations

import ipaddress
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations, product
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any, TypeVar

from builder.base import hub_cache, machine_record, processes, records
from builder.base.errors import BuilderError, EngineError, NodeError
from builder.base.events import Diagnosis, Message, Report, ignore
from builder.base.values import dataclass
from builder.base.words import did_you_mean
from builder.definitions import cluster, configuration
from builder.engine import client as endpoints
from builder.engine.machine import HERE, is_here, record_files, record_script, run_on_machine

if TYPE_CHECKING:
    from builder.base.machine_record import Machine
    from builder.base.project import Project
    from builder.definitions.configuration import Node
    from builder.engine.client import Endpoint


# The nodes of builder.yaml, and work on all of them in parallel.

_SILENT_SECONDS = 1.0
WAIT_LONGER = f"to wait longer: `--timeout SECONDS`, or `node_timeout` in {configuration.FILE}"
T = TypeVar("T")


def engines(project: Project, environ: Mapping[str, str], names: Sequence[str]) -> dict[str, Endpoint | EngineError]:
    """The engines of the nodes with these names, or of all nodes without names. A docker context that does not exist
    is the error of its node only. Raises UsageError for a node that is not in builder.yaml."""
    config = configuration.load_configuration(project)
    by_node: dict[str, Endpoint | EngineError] = {}
    for node in [config.node(name) for name in dict.fromkeys(names)] if names else config.nodes:
        try:
            by_node[node.name] = endpoints.of_node(environ, node.name, node.engine)
        except EngineError as error:
            by_node[node.name] = error
    return by_node


def ask_machines(
    engines: Mapping[str, Endpoint | EngineError],
    work: Callable[[str, Endpoint], T],
    seconds: float = threading.TIMEOUT_MAX,
    report: Report = ignore,
    overdue_hint: str = "check that the machine is on and not out of memory",
) -> dict[str, T | BuilderError]:
    """Runs ``work`` for all nodes that have an engine; returns the result or the BuilderError of each node. A node that
    does not answer within ``seconds`` gets a NodeError, and its thread ends with the process. Reports the missing
    nodes. Any other error of a node is raised at once."""
    overdue = NodeError(f"the node did not answer within {seconds:g} s", hint=overdue_hint)
    answers: dict[str, T | BuilderError] = {
        node: engine for node, engine in engines.items() if isinstance(engine, EngineError)
    }
    present = {node: engine for node, engine in engines.items() if not isinstance(engine, EngineError)}
    ended = processes.in_threads({node: partial(work, node, engine) for node, engine in present.items()})
    began = time.monotonic()
    for moment in (min(_SILENT_SECONDS, seconds), seconds):
        with suppress(Empty):
            while len(answers) < len(engines):
                node, answer = ended.get(timeout=max(began + moment - time.monotonic(), 0))
                if isinstance(answer, BaseException) and not isinstance(answer, BuilderError):
                    raise answer
                answers[node] = answer
        missing = ", ".join(node for node in engines if node not in answers)
        if missing and moment < seconds:
            report(Message(f"waiting for {missing}, for at most {seconds:g} s"))
    return {node: answers.get(node, overdue) for node in engines}


# A DGX Spark's own facts.

# Prints one line per GPU, such as `12.1`. Hangs if the driver is stuck.
_COMPUTE_CAPABILITY = "nvidia-smi --query-gpu=compute_cap --format=csv,noheader\n"
_SECONDS = 20.0


@dataclass(frozen=True)
class SparkFacts:
    """The record of the machine; the GPU's compute capability, empty if ``silence`` says why `nvidia-smi` does not
    report it; sizes in bytes by their names in /proc/meminfo; and whether earlyoom is running."""

    machine: Machine
    compute_capability: str
    silence: str
    sizes: Mapping[str, int]
    earlyoom: bool


def read_spark_facts(environ: Mapping[str, str], proc: Path) -> SparkFacts | None:
    """Reads the facts of this machine, whose /proc is ``proc``; None if the machine is not a Spark."""
    machine = machine_record.parse_machine(machine_record.read_files({"proc": proc}), {})
    if not has_gb10(machine):
        return None
    capability = silence = ""
    try:
        output = run_on_machine(environ, HERE, _COMPUTE_CAPABILITY, timeout=_SECONDS)
        capability = (output.strip().splitlines() or [""])[0].strip()
    except NodeError as error:
        silence = error.message
    if not silence and not re.fullmatch(r"\d+\.\d+", capability):
        capability, silence = "", f"it reports {capability or 'nothing'}"
    return SparkFacts(
        machine=machine,
        compute_capability=capability,
        silence=silence,
        sizes=processes.sizes(processes.text(proc / processes.MEMORY)),
        earlyoom=any(processes.text(path).strip() == "earlyoom" for path in proc.glob("[0-9]*/comm")),
    )


def is_spark(proc: Path) -> bool:
    files = machine_record.read_files({"proc": proc}, (f"proc/{processes.GPUS}",))
    return has_gb10(machine_record.parse_machine(files, {}))


def has_gb10(machine: Machine) -> bool:
    return "GB10" in machine.gpu.split()


# The choice of a node's settings for serving together with other nodes. A DGX Spark has two sockets of a ConnectX-7,
# and the system lists each socket as two devices. One cable, to another Spark or to a switch, activates two links;
# three Sparks in a ring use all four links (https://build.nvidia.com/spark/connect-two-sparks; NCCL's environment
# variables: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html).

# The Ethernet and the Wi-Fi interface of a DGX Spark. The machines of a ring coordinate over them.
_COORDINATION = ("enP7s7", "wlP9s9")


@dataclass(frozen=True)
class LinkChoice:
    """The settings for a node: the interface and the address for other nodes (or empty), its RoCE devices, and its
    environment. ``shape`` is the shape of the network; ``problems`` say why the links cannot work."""

    shape: str
    interface: str
    address: str
    rdma: tuple[str, ...]
    env: dict[str, str]
    problems: tuple[str, ...]


def choose_link(facts: MachineFacts) -> LinkChoice:
    up = [link for link in facts.links if link.is_up]
    if not up:
        there = "no link of a RoCE device is up" if facts.links else "the machine has no RoCE device"
        return LinkChoice("none", "", "", (), {}, (there,))
    is_mesh = len(up) == cluster.MESH_DEVICES
    names = _COORDINATION if is_mesh else sorted((link.interface for link in up), key=_is_second)
    interface = next((each for name in names if (each := facts.interface(name)) and each.addresses), None)
    problems = [] if interface else [f"none of {', '.join(names)} has an IPv4 address"]
    problems += address_problems(facts)
    if len(up) not in {1, 2, cluster.MESH_DEVICES}:
        problems.append(f"{len(up)} links are up: a pair or a switch has two, a ring of three machines four")
    return LinkChoice(
        shape="mesh" if is_mesh else "pair or switch",
        interface=interface.name if interface else "",
        address=interface.address if interface else "",
        rdma=tuple(link.device for link in up),
        env=dict(cluster.MESH) if is_mesh else {},
        problems=tuple(problems),
    )


def address_problems(facts: MachineFacts) -> tuple[str, ...]:
    """Problems of the interfaces whose link is up. The first interface of each socket needs an address. Two interfaces
    must not share a subnet, since the system would answer for both on one interface."""
    linked = [interface for link in facts.links if link.is_up and (interface := facts.interface(link.interface))]
    missing = [each.name for each in linked if not each.addresses and not _is_second(each.name)]
    problems = [f"{name} is up but has no IPv4 address" for name in missing]
    names = {interface.name for interface in linked}
    others = [each for each in facts.interfaces if each.is_up and each.name != "lo"]
    for first, second in combinations(others, 2):
        pairs = product(*([address.network for address in each.addresses] for each in (first, second)))
        shared = next((pair for pair in pairs if pair[0].overlaps(pair[1])), ())
        if shared and names & {first.name, second.name}:
            subnet = min(shared, key=lambda network: network.prefixlen)
            problems.append(f"{first.name} and {second.name} share the subnet {subnet}")
    return tuple(problems)


def _is_second(name: str) -> bool:
    """True for the second interface of a socket. Its name has a PCI domain: ``enP2p1s0f1np1``."""
    return "P" in name


# The facts that a machine reports: its interfaces, its RoCE devices and their links, its models, its clock. Files of
# the kernel name the interface of a RoCE device: https://docs.kernel.org/admin-guide/abi-stable.html (infiniband).
# ``BUILDER_SYSFS`` and ``BUILDER_DEV`` replace the folders /sys and /dev.

_SCRIPT = r"""
set -u
PATH=$PATH:/usr/sbin:/sbin
sysfs=${BUILDER_SYSFS:-/sys} devices=${BUILDER_DEV:-/dev}
echo "time $(date +%s.%N)"
echo "name $(uname -n)"
for file in "$devices"/infiniband/*; do
  if [ -e "$file" ]; then echo "verbs ${file##*/}"; fi
done
for net in "$sysfs"/class/infiniband/*/device/net/*; do
  device=${net%/device/net/*}
  if [ -e "$net" ]; then echo "link ${device##*/} ${net##*/} $(cat "$net/operstate" 2>/dev/null)"; fi
done
hub=${1:-}
case $hub in '~/'*) hub=$HOME/${hub#'~/'} ;; esac
for folder in "$hub"/models--*/snapshots/*/; do
  if [ -d "$folder" ]; then echo "snapshot ${folder#"$hub"/}"; fi
done
command -v ip >/dev/null 2>&1 || { echo 'the machine has no program `ip` (iproute2)' >&2; exit 1; }
echo "addresses $(ip -j address show | tr -d '\n')"
"""
# The files with the kernel, the driver and the GPUs.
_PLACES = ("proc/sys/kernel/osrelease", "proc/cmdline", "proc/driver/nvidia/version", f"proc/{processes.GPUS}")
_SNAPSHOT = re.compile(r"models--([^/]+)/snapshots/([^/]+)/")


@dataclass(frozen=True)
class NetworkInterface:
    """A network interface: its name, whether it is up, and its IPv4 addresses with their networks."""

    name: str
    is_up: bool
    addresses: tuple[ipaddress.IPv4Interface, ...]

    @property
    def address(self) -> str:
        return str(self.addresses[0].ip) if self.addresses else ""


@dataclass(frozen=True)
class RoceLink:
    """A RoCE device, the interface of its port, and whether the interface's link is up."""

    device: str
    interface: str
    is_up: bool


@dataclass(frozen=True)
class MachineFacts:
    """The facts of a machine. ``verbs`` are the files in /dev/infiniband that programs use for the devices.
    ``snapshots`` are the models in its cache, each as (ORG--NAME, commit). ``clock_offset`` is the lead of its clock
    over this machine's clock, ``clock_error`` the error, both in seconds. ``machine`` has its GPU, driver and
    kernel."""

    name: str
    interfaces: tuple[NetworkInterface, ...]
    links: tuple[RoceLink, ...]
    verbs: tuple[str, ...]
    snapshots: frozenset[tuple[str, str]]
    clock_offset: float
    clock_error: float
    machine: Machine

    def interface(self, name: str) -> NetworkInterface | None:
        return next((interface for interface in self.interfaces if interface.name == name), None)

    def commits(self, model: str) -> frozenset[str]:
        """The commits of a model in the machine's cache."""
        name = hub_cache.folder_name(model)
        return frozenset(commit for folder, commit in self.snapshots if f"models--{folder}" == name)


def gather_facts(environ: Mapping[str, str], host: str, hub: str = "") -> MachineFacts:
    """Asks the machine of the engine at ``host``. ``hub`` is the folder with models on that machine. Raises NodeError
    if the machine cannot be reached, or lacks a program."""
    before = time.time()
    # With ssh, a shell reads the words of the command.
    word = hub if is_here(host) else shlex.quote(hub)
    text = run_on_machine(environ, host, _SCRIPT + record_script(_PLACES), [word] if hub else [])
    return parse_facts(text, before, time.time())


def parse_facts(text: str, before: float, after: float) -> MachineFacts:
    """Parses the output of the script, which ran between the times ``before`` and ``after`` of this machine's clock.
    Raises NodeError for any other output, such as the output of a login script."""
    values: dict[str, list[str]] = {}
    for key, _, value in (line.partition(" ") for line in text.split("\n")):
        values.setdefault(key, []).append(value)
    links = [value.split(" ", 2) for value in values.get("link", ())]
    try:
        interfaces = tuple(_interface(entry) for entry in records.parse_json(values["addresses"][0]))
        clock = float(values["time"][0])
        name = values["name"][0]
    except (KeyError, ValueError, TypeError) as error:
        raise NodeError(f"the list of interfaces cannot be read: {text.strip()[:200]!r} ({error})") from None
    return MachineFacts(
        name=name.partition(".")[0],
        interfaces=interfaces,
        links=tuple(
            RoceLink(device, interface, state == "up")
            for device, interface, state in sorted(links, key=lambda link: (_is_second(link[1]), link[0]))
        ),
        verbs=tuple(values.get("verbs", ())),
        snapshots=frozenset(
            (match[1], match[2]) for value in values.get("snapshot", ()) if (match := _SNAPSHOT.match(value))
        ),
        # The machine reads its clock soon after the request arrives: with ssh, connecting takes longer than answering.
        clock_offset=clock - (before + after) / 2,
        clock_error=(after - before) / 2,
        machine=machine_record.parse_machine(record_files(text), {}),
    )


def _interface(entry: Mapping[str, Any]) -> NetworkInterface:
    addresses = tuple(
        ipaddress.IPv4Interface(f"{address['local']}/{address['prefixlen']}")
        for address in entry.get("addr_info", ())
        if address.get("family") == "inet"
    )
    # Bridges, tunnels and lo report UNKNOWN although they carry traffic.
    is_up = entry.get("operstate") == "UP" or (entry.get("operstate") == "UNKNOWN" and "UP" in entry.get("flags", ()))
    return NetworkInterface(entry["ifname"], is_up, addresses)


# The checks of a node before it builds or serves.

_DISCOVER = "`builder nodes discover` fills it in"


def check_links(node: Node, nodes: Sequence[Node], facts: MachineFacts) -> Iterator[Diagnosis]:
    """Checks the interface, the RoCE devices and the subnets of ``node``, which serves together with ``nodes``."""
    if node.interface is None:
        yield Diagnosis("interface", "warning", "builder.yaml names no interface", _DISCOVER)
    else:
        yield _check_interface(node, node.interface, facts)
    yield from _devices(node, facts)
    problems = address_problems(facts)
    for problem in problems:
        yield Diagnosis("subnets", "error", problem, "give each interface an address in a subnet of its own (netplan)")
    if not problems:
        yield from _reach(node, nodes, facts)


def _check_interface(node: Node, name: str, facts: MachineFacts) -> Diagnosis:
    interface = facts.interface(name)
    if interface is None:
        names = [each.name for each in facts.interfaces if each.is_up and each.name != "lo"]
        meant = did_you_mean(name, names, code=True) or f"interfaces that are up: {', '.join(names) or 'none'}"
        return Diagnosis("interface", "error", f"the machine has no interface {name}", meant)
    if not interface.is_up:
        return Diagnosis(
            "interface", "error", f"{name} is down", "check that the cable is in, and that the other end is up"
        )
    addresses = [str(address.ip) for address in interface.addresses]
    if not addresses:
        return Diagnosis("interface", "error", f"{name} has no IPv4 address", "give it one (netplan)")
    if _ip(node.address) and node.address not in addresses:
        message = f"{name} has {', '.join(addresses)}, but builder.yaml says {node.address}"
        return Diagnosis("interface", "error", message, _DISCOVER)
    return Diagnosis("interface", "ok", f"{name}, {node.address or addresses[0]}")


def _devices(node: Node, facts: MachineFacts) -> Iterator[Diagnosis]:
    links = {link.device: link for link in facts.links}
    if node.rdma is None and facts.links:
        yield Diagnosis("devices", "warning", f"builder.yaml lacks `rdma`: {', '.join(links)}", _DISCOVER)
    elif node.rdma is None:
        remedy = "if that is correct, write `rdma: []` in builder.yaml; the nodes then talk over TCP"
        yield Diagnosis("devices", "warning", "the machine has no RoCE device", remedy)
    elif not node.rdma:
        yield Diagnosis("devices", "ok", "none: the nodes talk over TCP")
    for name in node.rdma or ():
        if name not in links:
            meant = did_you_mean(name, links, code=True) or f"RoCE devices of the machine: {', '.join(links) or 'none'}"
            yield Diagnosis("devices", "error", f"the machine has no RoCE device {name}", meant)
        elif not links[name].is_up:
            message = f"the link of {name} ({links[name].interface}) is down"
            yield Diagnosis("devices", "error", message, "check that the cable is in, and that the other end is up")
    if node.rdma and not facts.verbs:
        remedy = "`sudo modprobe ib_uverbs`, on the node"
        yield Diagnosis("devices", "error", "/dev/infiniband is missing or empty", remedy)
    elif node.rdma and all(name in links and links[name].is_up for name in node.rdma):
        yield Diagnosis("devices", "ok", ", ".join(node.rdma))


def _reach(node: Node, nodes: Sequence[Node], facts: MachineFacts) -> Iterator[Diagnosis]:
    """Checks that the other nodes are in a subnet of this node's interface."""
    interface = facts.interface(node.interface or "")
    if interface is None or not interface.addresses:
        return
    networks = [address.network for address in interface.addresses]
    for other in nodes:
        address = _ip(other.address) if other.name != node.name else None
        if address and not any(address in network for network in networks):
            message = f"{other.name} ({other.address}) is not in any subnet of {interface.name}"
            yield Diagnosis("subnets", "warning", message, "nodes that serve together must share a link")
            return
    yield Diagnosis("subnets", "ok", f"no subnet is shared: {', '.join(map(str, networks))}")


def _ip(text: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.ip_address(text or "")
    return None


# Checks that a DGX Spark can build images and serve models. `builder advisories` has the known problems of its driver
# and its kernel.

GIB = 1 << 30
# The images have CUDA 13, which requires this driver:
# https://docs.nvidia.com/cuda/archive/13.0.0/cuda-toolkit-release-notes/
OLDEST_DRIVER = 580
# A job of FlashInfer's build takes 8 GiB; the desktop and the page cache need some more.
MEMORY_TO_BUILD = 16 * GIB
SWAP_IN_USE = 0.25  # above this share, servers wait for the disk
_UPDATE = "`sudo apt update && sudo apt full-upgrade`, then restart: DGX OS brings the driver with its own updates"


def check_spark(facts: SparkFacts, architectures: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Checks a Spark; ``architectures`` are the GPU architectures of the definitions, by definition."""
    yield check_driver(facts.machine.driver)
    yield Diagnosis("kernel", "ok", facts.machine.kernel or "unknown")
    yield _gpu(facts, architectures)
    total, available = (facts.sizes.get(name, 0) for name in ("MemTotal", "MemAvailable"))
    message = f"{available / GIB:.0f} of {total / GIB:.0f} GiB available, shared with the GPU"
    if available >= MEMORY_TO_BUILD:
        yield Diagnosis("memory", "ok", message)
    else:
        remedy = "a build from source needs memory: `builder status` shows the servers, and `builder stop` stops one"
        yield Diagnosis("memory", "warning", message, remedy)
    total, free = (facts.sizes.get(name, 0) for name in ("SwapTotal", "SwapFree"))
    message = f"{(total - free) / GIB:.1f} of {total / GIB:.0f} GiB in use"
    if not total:
        yield Diagnosis("swap", "ok", "none: the kernel kills processes that do not fit into memory")
    elif total - free <= SWAP_IN_USE * total:
        yield Diagnosis("swap", "ok", message)
    else:
        remedy = "stop what uses the memory, then run `sudo swapoff -a && sudo swapon -a` to empty the swap"
        yield Diagnosis("swap", "warning", message, remedy)
    if facts.earlyoom:
        yield Diagnosis("earlyoom", "ok", "running")
    else:  # https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1358
        message = "not running: a Spark freezes when all its memory is in use"
        remedy = "`sudo apt install earlyoom` for the whole machine; `builder run RECIPE --earlyoom` for one server"
        yield Diagnosis("earlyoom", "warning", message, remedy)


def check_driver(version: str) -> Diagnosis:
    """Checks the ``version`` of a GB10's driver; it is empty if the kernel has loaded no driver."""
    if not version:
        return Diagnosis("driver", "error", "the kernel reports a GB10, but no version of NVIDIA's driver", _UPDATE)
    if int(version.partition(".")[0]) < OLDEST_DRIVER:
        message = f"NVIDIA {version}; CUDA 13 in the images requires {OLDEST_DRIVER} or later"
        return Diagnosis("driver", "error", message, _UPDATE)
    return Diagnosis("driver", "ok", f"NVIDIA {version}")


def _gpu(facts: SparkFacts, architectures: Mapping[str, str]) -> Diagnosis:
    capability = facts.compute_capability
    if facts.silence:
        message = f"nvidia-smi does not report the compute capability: {facts.silence}"
        remedy = "run `nvidia-smi` by hand; if it hangs, the driver is stuck, and the machine needs a restart"
        return Diagnosis("GPU arch", "error", message, remedy)
    others = [
        f"{definition} ({architecture})"
        for definition, architecture in architectures.items()
        if capability not in (part.rstrip("af+PTX") for part in architecture.replace(";", " ").split())
    ]
    if others:
        message = f"compute capability {capability}, but these definitions build for another GPU: {', '.join(others)}"
        remedy = f"set `gpu_arch: {capability}a` under `args:` in their image.yaml"
        return Diagnosis("GPU arch", "warning", message, remedy)
    return Diagnosis("GPU arch", "ok", f"compute capability {capability}")

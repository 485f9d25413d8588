"""One model served by several nodes together: which of them take part, and the command that runs on each.

As the community's launcher starts them (launch-cluster.sh of spark-vllm-docker): vLLM's own multi-node launch
(https://docs.vllm.ai/en/stable/serving/parallelism_scaling.html), the same command on each node with the number of
nodes, the node's own rank and the address of the head node; or Ray, where the user or the recipe's ``cluster`` says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from builder.definitions import configuration
from builder.definitions.recipes import arguments, cluster_network, command
from builder.definitions.recipes.container import LABEL
from builder.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.definitions.configuration import Node
    from builder.definitions.recipes.arguments import Backend
    from builder.definitions.recipes.command import ServeCommand
    from builder.definitions.recipes.container import ContainerSettings
    from builder.definitions.recipes.recipe import Recipe

RANK = f"{LABEL}.rank"
# The port of the head node at which the others meet it, of vLLM's launch and of Ray alike.
MASTER_PORT = 29501
_PORT_OPTION = "--master-port"
_OBJECT_STORE = ("--object-store-memory", "1073741824", "--num-cpus", "2")


@dataclass(frozen=True)
class ClusterMember:
    """A node that takes part, with its ``rank`` among them (0 is the head) and the ``address`` where the others reach
    it. ``argv`` is what runs on it: the serve command, or Ray's worker; ``ray`` is what starts Ray beside the serve
    command of a head node, and empty elsewhere."""

    node: Node
    rank: int
    address: str
    argv: tuple[str, ...]
    ray: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cluster:
    """The nodes that serve one model together, the head first, and how. ``command`` is that of the head; ``sizes`` are
    those that the model is spread by, where the command gives them; ``left_alone`` are the nodes that it does not
    need; ``port`` is that of the head at which the others meet it."""

    members: tuple[ClusterMember, ...]
    backend: Backend
    command: ServeCommand
    sizes: Mapping[str, int]
    left_alone: tuple[Node, ...]
    port: str

    @property
    def note(self) -> str:
        """A note for the user: how many nodes are used, and which are not; empty where all of them are."""
        if not self.left_alone:
            return ""
        used = ", ".join(member.node.name for member in self.members)
        others = ", ".join(node.name for node in self.left_alone)
        return f"{_product(self.sizes)} takes {len(self.members)} of the nodes: {used}; left alone: {others}"


def require_fit(recipe: Recipe, nodes: int) -> None:
    """Raises UsageError where ``recipe`` does not serve on that many nodes."""
    if nodes > 1 and recipe.solo_only:
        raise UsageError(f"{recipe.file} says `solo_only`: one machine serves it", hint="name one node, or none")
    if nodes < 2 and recipe.cluster_only:
        raise UsageError(
            f"{recipe.file} says `cluster_only`: several machines serve it together",
            hint="name them with --node, or in builder.yaml under `nodes`, this one too where it takes part: "
            "`spark1: {engine: default, address: 10.0.0.1}`",
        )


def require_several(requested: Backend | None, nodes: int) -> None:
    """Raises UsageError where Ray is ``requested`` for one machine."""
    if requested == "ray" and nodes < 2:
        raise UsageError("--ray joins several nodes, and there is one machine", hint="name the nodes with --node")


def backend_of(recipe: Recipe, requested: Backend | None) -> Backend:
    """The backend that joins several nodes: the one that the user ``requested``, else the recipe's, or vLLM's own."""
    return requested or ("ray" if recipe.cluster == "ray" else "mp")


def of(
    recipe: Recipe, overrides: Mapping[str, str], extra: Sequence[str], nodes: Sequence[Node], backend: Backend
) -> Cluster:
    """The cluster that serves ``recipe`` on as many of ``nodes`` as its command spreads the model over. They meet at
    ``MASTER_PORT`` of the head, or at the ``--master-port`` in ``extra``.

    Raises UsageError where there are too few of them, or an address is not known; otherwise as ``command.render`` does.
    """
    require_fit(recipe, len(nodes))
    port = arguments.option(extra, _PORT_OPTION) or str(MASTER_PORT)
    extra = arguments.without(extra, _PORT_OPTION)
    alike = command.render_member(recipe, overrides, extra, backend)
    sizes = arguments.parallelism(alike.words)
    count = prod(sizes.values()) if sizes else len(nodes)
    if count > len(nodes):
        raise UsageError(
            f"{recipe.file}: its command takes {count} machines ({_product(sizes)}), and there are {len(nodes)}",
            hint="name more nodes, or set another size, such as --tp",
        )
    used = nodes[:count]
    addresses = [configuration.address_of(node) for node in used]
    if backend == "ray":
        return Cluster(_joined_by_ray(used, addresses, port, alike), backend, alike, sizes, tuple(nodes[count:]), port)
    commands = [
        command.render_member(recipe, overrides, extra, backend, _place(rank, count, addresses[0], port))
        for rank in range(count)
    ]
    members = tuple(
        ClusterMember(node, rank, address, rendered.argv)
        for rank, (node, address, rendered) in enumerate(zip(used, addresses, commands, strict=True))
    )
    return Cluster(members, backend, commands[0], sizes, tuple(nodes[count:]), port)


def member_settings(settings: ContainerSettings, member: ClusterMember, backend: Backend) -> ContainerSettings:
    """``settings`` for a member of a cluster. Only the head node answers requests, so only it has a health check."""
    return replace(
        cluster_network.connected(settings, member.node, member.address, backend),
        argv=_launched(member, backend),
        labels={**settings.labels, RANK: str(member.rank)},
        # The nodes talk to each other on ports that are chosen as they start.
        network="host",
        ports=(),
        health=None if member.rank else settings.health,
    )


def _product(sizes: Mapping[str, int]) -> str:
    return " x ".join(f"{name} {size}" for name, size in sizes.items())


def _place(rank: int, count: int, head: str, port: str) -> tuple[str, ...]:
    headless = ("--headless",) if rank else ()
    master = ("--master-addr", head, _PORT_OPTION, port)
    return ("--nnodes", str(count), "--node-rank", str(rank), *master, *headless)


def _joined_by_ray(
    nodes: Sequence[Node], addresses: Sequence[str], port: str, alike: ServeCommand
) -> tuple[ClusterMember, ...]:
    head = addresses[0]
    start = ("ray", "start", "--block")
    quiet = ("--include-dashboard=false", "--disable-usage-stats")
    ray = (*start, "--head", "--port", port, *_OBJECT_STORE, "--node-ip-address", head, *quiet)
    meeting = f"--address=[{head}]:{port}" if ":" in head else f"--address={head}:{port}"
    others = (
        ClusterMember(
            node,
            rank,
            address,
            (*start, *_OBJECT_STORE, "--disable-usage-stats", meeting, "--node-ip-address", address),
        )
        for rank, (node, address) in enumerate(zip(nodes[1:], addresses[1:], strict=True), 1)
    )
    return (ClusterMember(nodes[0], 0, head, alike.argv, ray), *others)


# Ray runs beside the server; the number of its words comes first.
_HEAD = (
    'count=$1; shift; "${@:1:count}" & ray=$!; shift "$count"; '
    'until ray status >/dev/null 2>&1; do kill -0 "$ray" || exit 1; sleep 2; done; exec "$@"'
)
# The head node may not answer yet, and may come back after it was lost.
_WORKER = 'until "$@"; do sleep 2; done'


def _launched(member: ClusterMember, backend: Backend) -> tuple[str, ...]:
    """The argument vector of the member's container."""
    if member.ray:
        return ("bash", "-c", _HEAD, "bash", str(len(member.ray)), *member.ray, *member.argv)
    return ("bash", "-c", _WORKER, "bash", *member.argv) if backend == "ray" else member.argv

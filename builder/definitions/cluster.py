"""Several nodes serve one model together, each with its own command.

A guard runs around the command of each node. When the command of one node ends, the guards end the other commands, and
the engines start all of them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base.errors import UsageError
from builder.base.values import dataclass, replace
from builder.definitions import command, configuration
from builder.definitions.container import LABEL, ContainerSettings

if TYPE_CHECKING:
    from builder.definitions.command import Backend, ServeCommand
    from builder.definitions.configuration import Node
    from builder.definitions.recipe import Recipe


# The settings with which a container uses the link between the nodes. NCCL's variables:
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html. The variables for a DGX Spark, and the limits of
# an unprivileged container: launch-cluster.sh and autodiscover.sh of spark-vllm-docker.

RDMA_DEVICES = "/dev/infiniband"
# RDMA registers memory with the device. This pins the memory.
RDMA_CAPABILITY = "IPC_LOCK"
_SHM_SIZE, _MEMORY, _MEMORY_SWAP, _PIDS = "64g", "110g", "120g", 4096

# NCCL (bootstrap and collectives), Gloo, TensorPipe, UCX and MPI all use one named interface. Otherwise, each of them
# would choose an interface, possibly a different one.
_INTERFACE_VARIABLES = (
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES", "MN_IF_NAME"),
    "OMPI_MCA_btl_tcp_if_include",
)
# Three nodes, each connected to the other two: every pair has its own subnets.
MESH_DEVICES = 4
MESH = {"NCCL_NET_PLUGIN": "none", "NCCL_IB_SUBNET_AWARE_ROUTING": "1", "NCCL_IB_MERGE_NICS": "0"}


def environment(node: Node, address: str, backend: Backend) -> dict[str, str]:
    """The variables for a container on ``node``. Other nodes reach it at ``address``."""
    variables = {"VLLM_HOST_IP": address}
    if node.interface:
        variables |= dict.fromkeys(_INTERFACE_VARIABLES, node.interface)
    if node.rdma:
        variables["NCCL_IB_HCA"] = ",".join(node.rdma)
    variables["NCCL_IB_DISABLE"] = "1" if node.rdma == () else "0"
    if len(node.rdma or ()) >= MESH_DEVICES:
        variables |= MESH
    if backend == "ray":
        variables |= {
            "RAY_NODE_IP_ADDRESS": address,
            "RAY_OVERRIDE_NODE_IP_ADDRESS": address,
            "RAY_memory_monitor_refresh_ms": "0",
            "RAY_num_prestart_python_workers": "0",
            "RAY_object_store_memory": "1073741824",
        }
    return variables


def devices(node: Node, *, gpus: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The devices and capabilities for a container on ``node``. If the devices are not configured, a container with
    GPUs gets the existing RDMA devices."""
    return ((RDMA_DEVICES,), (RDMA_CAPABILITY,)) if node.rdma or (node.rdma is None and gpus) else ((), ())


def combined(own: Mapping[str, str], node: Node, address: str, backend: Backend) -> dict[str, str]:
    """The variables of a container. The recipe's variables ``own`` override the link's variables, and the node's
    ``env`` overrides both."""
    return {**environment(node, address, backend), **own, **node.env}


def connected(settings: ContainerSettings, node: Node, address: str, backend: Backend) -> ContainerSettings:
    """``settings`` with the link of ``node``: environment, RoCE devices, and limits in place of the host's IPC."""
    of_link, capabilities = devices(node, gpus=settings.gpus)
    joined = replace(
        settings,
        env=combined(settings.env, node, address, backend),
        devices=(*settings.devices, *of_link),
        capabilities=(*settings.capabilities, *capabilities),
    )
    if not settings.gpus:
        return joined
    # A memory limit: a node without free memory then loses the container, but keeps running.
    return replace(
        joined,
        ipc="private",
        shm_size=settings.shm_size or _SHM_SIZE,
        memory=settings.memory or _MEMORY,
        memory_swap=settings.memory_swap or ("" if settings.memory else _MEMORY_SWAP),
        pids=settings.pids or _PIDS,
    )


# The command of each node, as in launch-cluster.sh of spark-vllm-docker: vLLM's own multi-node launch
# (https://docs.vllm.ai/en/stable/serving/parallelism_scaling.html), or Ray if the user or the recipe requests it.

RANK = f"{LABEL}.rank"
# The port of the head node to which the other nodes connect, for vLLM's launch and for Ray.
MASTER_PORT = 29501
_PORT_OPTION = "--master-port"
_OBJECT_STORE = ("--object-store-memory", "1073741824", "--num-cpus", "2")


@dataclass(frozen=True)
class ClusterMember:
    """A node of a cluster, its ``rank`` (0 is the head), and its ``address`` for the other nodes. ``argv`` is the serve
    command, or Ray's worker. ``ray`` starts Ray beside the serve command of a head node. The commands ``before`` run
    first."""

    node: Node
    rank: int
    address: str
    argv: tuple[str, ...]
    ray: tuple[str, ...] = ()
    before: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cluster:
    """The nodes that serve one model together, the head first. ``command`` is the command of the head. The other nodes
    connect to its ``port``. ``sizes`` are the parallel sizes of the command; ``left_alone`` are unused nodes."""

    members: tuple[ClusterMember, ...]
    backend: Backend
    command: ServeCommand
    sizes: Mapping[str, int]
    left_alone: tuple[Node, ...]
    port: str

    @property
    def note(self) -> str:
        """A note with the number of used nodes, and the unused nodes; empty if all are used."""
        used = ", ".join(member.node.name for member in self.members)
        others = ", ".join(node.name for node in self.left_alone)
        text = f"{_product(self.sizes)} uses {len(self.members)} of the nodes: {used}; not used: {others}"
        return text if others else ""


def require_fit(recipe: Recipe, nodes: int) -> None:
    """Raises UsageError if ``recipe`` does not allow that number of nodes."""
    if nodes > 1 and recipe.solo_only:
        raise UsageError(f"{recipe.file} says `solo_only`: one machine serves it", hint="use `--node` at most once")
    if 1 < nodes < recipe.min_nodes:
        message = (
            f"{recipe.file} requires at least {recipe.min_nodes} machines (`min_nodes`), but there are only {nodes}"
        )
        raise UsageError(message, hint="name more nodes with `--node`, or add nodes under `nodes` in builder.yaml")
    if nodes < 2 and recipe.cluster_only:
        hint = (
            "name the machines with `--node`, or under `nodes` in builder.yaml, for example"
            " `spark1: {engine: default, address: 10.0.0.1}`; include this machine if it takes part"
        )
        raise UsageError(f"{recipe.file} says `cluster_only`: one machine alone cannot serve it", hint=hint)


def require_several(requested: Backend | None, nodes: int) -> None:
    if requested == "ray" and nodes < 2:
        raise UsageError(
            "--ray joins several nodes, but the server uses one machine", hint="name the nodes with --node"
        )


def backend_of(recipe: Recipe, requested: Backend | None) -> Backend:
    """The backend that connects several nodes: the ``requested`` one, or the recipe's, or vLLM's own."""
    return requested or ("ray" if recipe.cluster == "ray" else "mp")


def cluster_of(
    recipe: Recipe, overrides: Mapping[str, str], extra: Sequence[str], nodes: Sequence[Node], backend: Backend
) -> Cluster:
    """The cluster that serves ``recipe``. It uses as many of ``nodes`` as the command requires. The nodes connect to
    ``MASTER_PORT`` of the head, or to the ``--master-port`` in ``extra``.

    Raises UsageError if there are too few nodes, or if an address is unknown; and the errors of `render_command`.
    """
    require_fit(recipe, len(nodes))
    port = command.option(extra, _PORT_OPTION) or str(MASTER_PORT)
    extra = command.without(extra, _PORT_OPTION)
    alike = command.render_command(recipe, overrides, extra, backend)
    sizes = command.parallelism(alike.words)
    count = prod(sizes.values()) if sizes else len(nodes)
    if count > len(nodes):
        message = f"its command requires {count} machines ({_product(sizes)}), but there are only {len(nodes)}"
        hint = "name more nodes with `--node`, or set a smaller size, such as `--tp`"
        raise UsageError(f"{recipe.file}: {message}", hint=hint)
    if recipe.max_nodes and count > recipe.max_nodes:
        message = f"allows at most {recipe.max_nodes} machines (`max_nodes`), but its command requires {count}"
        raise UsageError(f"{recipe.file} {message}", hint="set a smaller size, such as `--tp`")
    used = nodes[:count]
    addresses = [configuration.address_of(node) for node in used]
    if backend == "ray":
        members = _joined_by_ray(used, addresses, port, alike)
    else:
        master = ("--master-addr", addresses[0], _PORT_OPTION, port)
        members = []
        for rank, (node, address) in enumerate(zip(used, addresses, strict=True)):
            place = ("--nnodes", str(count), "--node-rank", str(rank), *master, *(("--headless",) if rank else ()))
            rendered = command.render_command(recipe, overrides, extra, backend, place)
            alike = alike if rank else rendered
            members.append(ClusterMember(node, rank, address, rendered.argv, before=rendered.before))
    return Cluster(tuple(members), backend, alike, sizes, tuple(nodes[count:]), port)


def member_settings(settings: ContainerSettings, member: ClusterMember, backend: Backend) -> ContainerSettings:
    """``settings`` for a member of a cluster. Only the head node answers requests, so only it has a health check."""
    argv = member.argv
    if member.ray:
        argv = ("bash", "-c", _HEAD, "bash", str(len(member.ray)), *member.ray, *member.argv)
    elif backend == "ray":
        argv = ("bash", "-c", _WORKER, "bash", *member.argv)
    return replace(
        connected(settings, member.node, member.address, backend),
        argv=command.after_steps(member.before, argv),
        labels={**settings.labels, RANK: str(member.rank)},
        # The nodes communicate on ports that are chosen when they start.
        network="host",
        ports=(),
        health=None if member.rank else settings.health,
    )


def _product(sizes: Mapping[str, int]) -> str:
    return " x ".join(f"{name} {size}" for name, size in sizes.items())


def _joined_by_ray(
    nodes: Sequence[Node], addresses: Sequence[str], port: str, alike: ServeCommand
) -> list[ClusterMember]:
    head, start = addresses[0], ("ray", "start", "--block")
    quiet = ("--include-dashboard=false", "--disable-usage-stats")
    ray = (*start, "--head", "--port", port, *_OBJECT_STORE, "--node-ip-address", head, *quiet)
    meeting = f"--address=[{head}]:{port}" if ":" in head else f"--address={head}:{port}"
    worker = (*start, *_OBJECT_STORE, "--disable-usage-stats", meeting, "--node-ip-address")
    members = [ClusterMember(nodes[0], 0, head, alike.argv, ray, alike.before)]
    for rank, (node, address) in enumerate(zip(nodes[1:], addresses[1:], strict=True), 1):
        members.append(ClusterMember(node, rank, address, (*worker, address), before=alike.before))
    return members


# Ray runs beside the server; the number of its words comes first.
_HEAD = (
    'count=$1; shift; "${@:1:count}" & ray=$!; shift "$count"; '
    'until ray status >/dev/null 2>&1; do kill -0 "$ray" || exit 1; sleep 2; done; exec "$@"'
)
# The head node may not answer yet, or may return after a failure.
_WORKER = 'until "$@"; do sleep 2; done'


# The guard of each node's command. In vLLM, the other nodes wait forever for a head that has ended, and the head does
# not notice for a long time that a node has ended. So each guard keeps a connection to the head. The kernel closes the
# connection when the other end dies, and the guard ends its command. The engines then start all nodes again.

# The offset of the guard's port from the meeting port. A second server on the nodes has other ports.
_DISTANCE = 10
# The guard writes this line if the command of another node ended first.
ENDED_ELSEWHERE = "the server on another node has ended, so this server ends, too"
_SCRIPT = Path(__file__).with_name("guard_script.py")


def guarded(settings: ContainerSettings, rank: int, head: str, meeting_port: str) -> ContainerSettings:
    """``settings`` with a guard: the command ends when the command of another node ends. The guards connect to the
    ``head``'s address beside ``meeting_port``."""
    arguments = (str(rank), head, str(port(meeting_port)), settings.labels[LABEL])
    return replace(settings, argv=("python3", "-ISc", _SCRIPT.read_text(encoding="utf-8"), *arguments, *settings.argv))


def port(meeting_port: str) -> int:
    """The guard's port beside the meeting port."""
    number = command.whole_number(meeting_port) or 0
    return number + _DISTANCE if number + _DISTANCE <= 65535 else number - _DISTANCE

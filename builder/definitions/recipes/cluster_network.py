"""The link between nodes that serve one model together: what a container needs to use it.

NCCL's variables: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html. Which of them a DGX Spark needs,
and the limits of a container that is not privileged: the community's launcher (launch-cluster.sh and autodiscover.sh of
spark-vllm-docker).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.configuration import Node
    from builder.definitions.recipes.arguments import Backend
    from builder.definitions.recipes.container import ContainerSettings

RDMA_DEVICES = "/dev/infiniband"
# RDMA registers memory with the device, which pins it.
RDMA_CAPABILITY = "IPC_LOCK"
_SHM_SIZE, _MEMORY, _MEMORY_SWAP, _PIDS = "64g", "110g", "120g", 4096

# The bootstrap and the collectives of NCCL, Gloo, TensorPipe, UCX and MPI all go over one named interface: each of them
# would otherwise choose one by itself, and not the same.
_INTERFACE_VARIABLES = (
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES", "MN_IF_NAME"),
    "OMPI_MCA_btl_tcp_if_include",
)
# Three nodes, each wired to the two others: every pair has subnets of its own.
MESH_DEVICES = 4
MESH = {"NCCL_NET_PLUGIN": "none", "NCCL_IB_SUBNET_AWARE_ROUTING": "1", "NCCL_IB_MERGE_NICS": "0"}


def environment(node: Node, address: str, backend: Backend) -> dict[str, str]:
    """The variables for a container on ``node``, which the others reach at ``address``."""
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
    """The devices and capabilities for a container on ``node``. Where the node's devices are not configured, one with
    GPUs gets those that there are."""
    uses_rdma = bool(node.rdma) or (node.rdma is None and gpus)
    return ((RDMA_DEVICES,), (RDMA_CAPABILITY,)) if uses_rdma else ((), ())


def combined(own: Mapping[str, str], node: Node, address: str, backend: Backend) -> dict[str, str]:
    """The variables of a container whose ``own`` are those of its recipe. These count before those of the link, and the
    node's ``env`` before both."""
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
    return _limited(joined) if settings.gpus else joined


def _limited(settings: ContainerSettings) -> ContainerSettings:
    """``settings`` with memory of its own, so that a node that runs out of it loses the container and not itself."""
    return replace(
        settings,
        ipc="private",
        shm_size=settings.shm_size or _SHM_SIZE,
        memory=settings.memory or _MEMORY,
        memory_swap=settings.memory_swap or ("" if settings.memory else _MEMORY_SWAP),
        pids=settings.pids or _PIDS,
    )

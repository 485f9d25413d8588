"""The link between nodes in a container's settings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder.definitions import cluster
from builder.definitions.cluster import ClusterMember
from builder.definitions.configuration import Node
from tests.serving.exports import settings

PAIR = Node("one", "default", interface="enp1s0f1np1", rdma=("rocep1s0f1", "roceP2p1s0f1"))
SERVING = replace(settings.hostile(), gpus=True, ipc="host", shm_size="", memory="", memory_swap="", pids=0, env={})
ALONE = replace(SERVING, devices=(), capabilities=())


def test_a_pair_talks_over_its_link() -> None:
    joined = cluster.member_settings(ALONE, ClusterMember(PAIR, 1, "10.0.0.2", ("x",)), "mp")
    names = ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES", "MN_IF_NAME"]
    assert joined.env == {
        "VLLM_HOST_IP": "10.0.0.2",
        **dict.fromkeys([*names, "OMPI_MCA_btl_tcp_if_include"], "enp1s0f1np1"),
        "NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1",
        "NCCL_IB_DISABLE": "0",
    }
    assert (joined.devices, joined.capabilities) == (("/dev/infiniband",), ("IPC_LOCK",))
    assert (joined.ipc, joined.shm_size, joined.memory, joined.pids) == ("private", "64g", "110g", 4096)
    assert (joined.network, joined.health, joined.labels[cluster.RANK]) == ("host", None, "1")
    assert cluster.member_settings(ALONE, ClusterMember(PAIR, 0, "10.0.0.1", ("x",)), "mp").health == ALONE.health


def test_four_devices_are_a_mesh() -> None:
    mesh = replace(PAIR, rdma=("a", "b", "c", "d"))
    variables = cluster.environment(mesh, "10.0.0.1", "mp")
    assert (variables["NCCL_NET_PLUGIN"], variables["NCCL_IB_SUBNET_AWARE_ROUTING"]) == ("none", "1")
    assert variables["NCCL_IB_MERGE_NICS"] == "0"
    assert "NCCL_NET_PLUGIN" not in cluster.environment(PAIR, "10.0.0.1", "mp")


def test_ray_gets_the_address_of_the_node() -> None:
    variables = cluster.environment(PAIR, "10.0.0.2", "ray")
    assert variables["RAY_NODE_IP_ADDRESS"] == variables["RAY_OVERRIDE_NODE_IP_ADDRESS"] == "10.0.0.2"
    assert variables["RAY_memory_monitor_refresh_ms"] == "0"


@pytest.mark.parametrize(
    ("rdma", "gpus", "devices", "disabled"),
    [
        (None, True, ("/dev/infiniband",), "0"),
        (None, False, (), "0"),
        ((), True, (), "1"),
        (("rocep1s0f1",), False, ("/dev/infiniband",), "0"),
    ],
)
def test_a_node_without_configured_devices(
    rdma: tuple[str, ...] | None, gpus: bool, devices: tuple[str, ...], disabled: str
) -> None:
    node = Node("one", "default", rdma=rdma)
    joined = cluster.connected(replace(ALONE, gpus=gpus), node, "10.0.0.1", "mp")
    assert (joined.devices, joined.env["NCCL_IB_DISABLE"]) == (devices, disabled)
    assert "NCCL_SOCKET_IFNAME" not in joined.env
    assert joined.memory == ("110g" if gpus else "")


def test_what_a_recipe_and_a_node_set_themselves_counts() -> None:
    recipe = replace(ALONE, env={"NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "WARN"})
    node = replace(PAIR, env={"NCCL_DEBUG": "INFO"})
    joined = cluster.connected(recipe, node, "10.0.0.1", "mp")
    assert (joined.env["NCCL_IB_DISABLE"], joined.env["NCCL_DEBUG"]) == ("1", "INFO")


def test_limits_that_are_set_stay() -> None:
    own = replace(ALONE, ipc="private", shm_size="16g", memory="90g", pids=100)
    joined = cluster.connected(own, PAIR, "10.0.0.1", "mp")
    assert (joined.shm_size, joined.memory, joined.memory_swap, joined.pids) == ("16g", "90g", "", 100)

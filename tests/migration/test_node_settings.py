"""Nodes of builder.yaml from the machines and the link in an ``.env``."""

from __future__ import annotations

from typing import Any

from builder.definitions.configuration import Node
from builder.moving import checkout, settings

HERE = "unix:///var/run/docker.sock"
LINK = "ETH_IF=enp1s0f1np1\nIB_IF=rocep1s0f1,roceP2p1s0f1\n"
AS_WRITTEN: dict[str, Any] = {"interface": "enp1s0f1np1", "rdma": ["rocep1s0f1", "roceP2p1s0f1"]}


def settle(text: str, *existing: Node, replace: bool = False) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    return settings.settle_nodes(checkout.parse_env_file(text, ".env"), existing, HERE, replace=replace)


def test_each_machine_becomes_a_node_and_this_one_has_the_engine_here() -> None:
    nodes, notes = settle(f"CLUSTER_NODES=127.0.0.1, 203.0.113.2\nLOCAL_IP=127.0.0.1\n{LINK}")
    assert nodes == {
        "spark1": {"engine": HERE, "address": "127.0.0.1", **AS_WRITTEN},
        "spark2": {"engine": "ssh://203.0.113.2", "address": "203.0.113.2", **AS_WRITTEN},
    }
    assert notes["CLUSTER_NODES"] == "spark1 is 127.0.0.1, this machine; spark2 is 203.0.113.2"


def test_names_and_logins_of_hosts_are_kept() -> None:
    nodes = settle("CLUSTER_NODES=desk.lan,me@rack.lan")[0]
    assert nodes == {
        "desk.lan": {"engine": "ssh://desk.lan", "address": "desk.lan"},
        "rack.lan": {"engine": "ssh://me@rack.lan", "address": "rack.lan"},
    }


def test_one_machine_needs_no_node() -> None:
    nodes, notes = settle(f"CLUSTER_NODES=127.0.0.1\n{LINK}")
    assert nodes == {}
    assert set(notes) == {"CLUSTER_NODES", "ETH_IF", "IB_IF"}


def test_a_machine_that_is_a_node_keeps_its_name_and_what_it_has() -> None:
    there = Node("desk", "ssh://me@203.0.113.1", interface="enp9")
    text = f"CLUSTER_NODES=203.0.113.1,203.0.113.2\n{LINK}"
    nodes, notes = settle(text, there)
    assert nodes["desk"] == {"address": "203.0.113.1", "rdma": ["rocep1s0f1", "roceP2p1s0f1"]}
    assert "desk has another `interface` in builder.yaml, which stays" in notes["ETH_IF"]
    assert settle(text, there, replace=True)[0]["desk"] == {"address": "203.0.113.1", **AS_WRITTEN}


def test_a_second_time_changes_nothing() -> None:
    text = f"CLUSTER_NODES=127.0.0.1,203.0.113.2\nCOPY_HOSTS=203.0.113.2,203.0.113.3\n{LINK}"
    first = settle(text)[0]
    assert first["spark3"] == {"engine": "ssh://203.0.113.3"}
    existing = [
        Node(name, **{**values, **({"rdma": tuple(values["rdma"])} if "rdma" in values else {})})
        for name, values in first.items()
    ]
    assert settle(text, *existing)[0] == {}


def test_in_a_ring_the_hosts_to_copy_to_are_no_further_machines() -> None:
    text = "CLUSTER_NODES=203.0.113.1,203.0.113.2\nCOPY_HOSTS=198.51.100.2\nCONTAINER_NCCL_IB_SUBNET_AWARE_ROUTING=1\n"
    nodes, notes = settle(text)
    assert set(nodes) == {"spark1", "spark2"}
    assert "another way to one of the nodes" in notes["COPY_HOSTS"]


def test_an_address_is_this_machines_if_it_can_be_bound_to() -> None:
    assert settings.is_own("127.0.0.1")
    assert not settings.is_own("203.0.113.1")
    assert not settings.is_own("desk.lan")

"""What builder.yaml says of a node's link, held against its machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder.definitions.configuration import Node
from builder.moving import node_checks
from builder.moving.node_facts import MachineFacts
from tests.nodes import machine

ADDRESSES = {"enp1s0f1np1": "192.168.177.11/24", "enP2p1s0f1np1": "192.168.178.11/24"}
ONE = Node("one", "ssh://one", None, "192.168.177.11", "enp1s0f1np1", machine.PAIR)
TWO = Node("two", "ssh://two", None, "192.168.177.12", "enp1s0f1np1", machine.PAIR)
FACTS = machine.facts(ADDRESSES, machine.PAIR, down=("enp1s0f0np0",))


def wrong(node: Node, facts: MachineFacts = FACTS, other: Node = TWO) -> list[tuple[str, str, str]]:
    checks = node_checks.check_links(node, (node, other), facts)
    return [(check.subject, check.verdict, f"{check.message} → {check.remedy}") for check in checks if check.remedy]


def test_all_is_well() -> None:
    assert [
        (check.subject, check.verdict, check.message) for check in node_checks.check_links(ONE, (ONE, TWO), FACTS)
    ] == [
        ("interface", "ok", "enp1s0f1np1, 192.168.177.11"),
        ("devices", "ok", "rocep1s0f1, roceP2p1s0f1"),
        ("subnets", "ok", "none shared; 192.168.177.0/24"),
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("enp1s0f1np2", "there is no enp1s0f1np2 → did you mean `enp1s0f1np1`?"),
        ("eth0", "there is no eth0 → up are: enp1s0f1np1, enP2p1s0f1np1"),
        ("enp1s0f0np0", "enp1s0f0np0 is down → is the cable in, and the other end up?"),
        (
            "enP2p1s0f1np1",
            "enP2p1s0f1np1 has 192.168.178.11, and builder.yaml says 192.168.177.11 → "
            "`builder nodes discover` fills it in",
        ),
    ],
)
def test_a_wrong_interface(name: str, message: str) -> None:
    first, *_ = wrong(replace(ONE, interface=name))
    assert first == ("interface", "error", message)


def test_wrong_devices() -> None:
    assert wrong(replace(ONE, rdma=("rocep1s0f2", "rocep1s0f0"))) == [
        ("devices", "error", "there is no rocep1s0f2 → did you mean `rocep1s0f1`?"),
        (
            "devices",
            "error",
            "the link of rocep1s0f0 (enp1s0f0np0) is down → is the cable in, and the other end up?",
        ),
    ]
    without = machine.facts(ADDRESSES, machine.PAIR, verbs=False)
    (only,) = wrong(ONE, without)
    assert only[:2] == ("devices", "error")
    assert only[2].startswith("/dev/infiniband is not there, or empty")


def test_what_is_not_configured_is_a_warning() -> None:
    found = wrong(Node("one", "ssh://one", address="192.168.177.11"))
    assert [(subject, verdict) for subject, verdict, _ in found] == [("interface", "warning"), ("devices", "warning")]
    over_tcp = replace(ONE, rdma=())
    assert wrong(over_tcp) == []
    without = replace(FACTS, links=())
    assert [verdict for _, verdict, _ in wrong(replace(ONE, rdma=None), without)] == ["warning"]


def test_nodes_on_another_link() -> None:
    other = replace(TWO, address="10.0.0.2")
    assert wrong(ONE, other=other) == [
        (
            "subnets",
            "warning",
            "two (10.0.0.2) is in no subnet of enp1s0f1np1 → nodes that serve together need one link",
        )
    ]
    assert wrong(ONE, other=replace(TWO, address="spark2.lan")) == []


def test_a_shared_subnet() -> None:
    facts = machine.facts({**ADDRESSES, "enP2p1s0f1np1": "192.168.177.13/24"}, machine.PAIR)
    ((subject, verdict, message),) = wrong(ONE, facts)
    assert (subject, verdict) == ("subnets", "error")
    assert "share the subnet 192.168.177.0/24" in message

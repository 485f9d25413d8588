"""The settings that are chosen for a pair, a switch and a ring, and what keeps links from working."""

from __future__ import annotations

from builder.moving import node_facts
from tests.nodes import machine

PAIR_ADDRESSES = {"enp1s0f1np1": "192.168.177.11/24", "enP2p1s0f1np1": "192.168.178.11/24"}
RING = tuple(machine.LINKS)
RING_ADDRESSES = {name: f"192.168.{number}.1/24" for number, name in enumerate(machine.LINKS.values(), 10)}


def test_two_links_are_a_pair_or_a_switch() -> None:
    choice = node_facts.choose_link(machine.facts(PAIR_ADDRESSES, machine.PAIR))
    assert (choice.shape, choice.interface, choice.address) == ("pair or switch", "enp1s0f1np1", "192.168.177.11")
    assert choice.rdma == machine.PAIR
    assert (choice.env, choice.problems) == ({}, ())


def test_the_second_interface_of_a_socket_serves_where_only_it_has_an_address() -> None:
    choice = node_facts.choose_link(machine.facts({"enp1s0f1np1": "", "enP2p1s0f1np1": "10.0.0.1/30"}, machine.PAIR))
    assert (choice.interface, choice.address) == ("enP2p1s0f1np1", "10.0.0.1")
    assert choice.problems == ("enp1s0f1np1 is up and has no IPv4 address",)


def test_four_links_are_a_ring_which_coordinates_over_the_lan() -> None:
    choice = node_facts.choose_link(machine.facts({**RING_ADDRESSES, "enP7s7": "10.1.1.5/16"}, RING))
    assert (choice.shape, choice.interface, choice.address) == ("mesh", "enP7s7", "10.1.1.5")
    assert choice.rdma == RING
    assert choice.env == {"NCCL_NET_PLUGIN": "none", "NCCL_IB_SUBNET_AWARE_ROUTING": "1", "NCCL_IB_MERGE_NICS": "0"}
    assert choice.problems == ()


def test_a_ring_without_a_cable_coordinates_over_wireless() -> None:
    choice = node_facts.choose_link(machine.facts({**RING_ADDRESSES, "enP7s7": "", "wlP9s9": "10.1.1.6/16"}, RING))
    assert (choice.interface, choice.address) == ("wlP9s9", "10.1.1.6")
    choice = node_facts.choose_link(machine.facts(RING_ADDRESSES, RING))
    assert choice.interface == ""
    assert choice.problems == ("none of enP7s7, wlP9s9 has an IPv4 address",)


def test_no_link_is_a_problem() -> None:
    choice = node_facts.choose_link(machine.facts({"enP7s7": "10.1.1.5/16"}, ()))
    assert (choice.shape, choice.interface, choice.rdma) == ("none", "", ())
    assert choice.problems == ("no link of a RoCE device is up",)


def test_three_links_are_neither() -> None:
    choice = node_facts.choose_link(machine.facts(PAIR_ADDRESSES, RING[:3]))
    assert choice.problems[-1] == "3 links are up: a pair or a switch has two, a ring of three machines four"


def test_no_two_interfaces_may_share_a_subnet() -> None:
    same = {"enp1s0f1np1": "192.168.177.11/24", "enP2p1s0f1np1": "192.168.177.12/24"}
    choice = node_facts.choose_link(machine.facts(same, machine.PAIR))
    assert choice.problems == ("enp1s0f1np1 and enP2p1s0f1np1 share the subnet 192.168.177.0/24",)
    wide = {**PAIR_ADDRESSES, "enP7s7": "192.168.0.9/16"}
    problems = node_facts.address_problems(machine.facts(wide, machine.PAIR))
    assert problems == (
        "enp1s0f1np1 and enP7s7 share the subnet 192.168.0.0/16",
        "enP2p1s0f1np1 and enP7s7 share the subnet 192.168.0.0/16",
    )
    others = {**PAIR_ADDRESSES, "docker0": "172.17.0.1/16", "br0": "172.17.0.9/16"}
    assert node_facts.address_problems(machine.facts(others, machine.PAIR)) == ()

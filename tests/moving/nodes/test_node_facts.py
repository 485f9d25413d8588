"""The settings that are chosen for a pair, a switch and a ring, and what keeps links from working."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.base.errors import NodeError
from builder.moving import machines
from tests import spark_proc
from tests.moving.nodes import machine

PAIR_ADDRESSES = {"enp1s0f1np1": "192.168.177.11/24", "enP2p1s0f1np1": "192.168.178.11/24"}
RING = tuple(machine.LINKS)
RING_ADDRESSES = {name: f"192.168.{number}.1/24" for number, name in enumerate(machine.LINKS.values(), 10)}


def test_two_links_are_a_pair_or_a_switch() -> None:
    choice = machines.choose_link(machine.facts(PAIR_ADDRESSES, machine.PAIR))
    assert (choice.shape, choice.interface, choice.address) == ("pair or switch", "enp1s0f1np1", "192.168.177.11")
    assert choice.rdma == machine.PAIR
    assert (choice.env, choice.problems) == ({}, ())


def test_the_second_interface_of_a_socket_serves_where_only_it_has_an_address() -> None:
    choice = machines.choose_link(machine.facts({"enp1s0f1np1": "", "enP2p1s0f1np1": "10.0.0.1/30"}, machine.PAIR))
    assert (choice.interface, choice.address) == ("enP2p1s0f1np1", "10.0.0.1")
    assert choice.problems == ("enp1s0f1np1 is up but has no IPv4 address",)


def test_four_links_are_a_ring_which_coordinates_over_the_lan() -> None:
    choice = machines.choose_link(machine.facts({**RING_ADDRESSES, "enP7s7": "10.1.1.5/16"}, RING))
    assert (choice.shape, choice.interface, choice.address) == ("mesh", "enP7s7", "10.1.1.5")
    assert choice.rdma == RING
    assert choice.env == {"NCCL_NET_PLUGIN": "none", "NCCL_IB_SUBNET_AWARE_ROUTING": "1", "NCCL_IB_MERGE_NICS": "0"}
    assert choice.problems == ()


def test_a_ring_without_a_cable_coordinates_over_wireless() -> None:
    choice = machines.choose_link(machine.facts({**RING_ADDRESSES, "enP7s7": "", "wlP9s9": "10.1.1.6/16"}, RING))
    assert (choice.interface, choice.address) == ("wlP9s9", "10.1.1.6")
    choice = machines.choose_link(machine.facts(RING_ADDRESSES, RING))
    assert choice.interface == ""
    assert choice.problems == ("none of enP7s7, wlP9s9 has an IPv4 address",)


def test_no_link_is_a_problem() -> None:
    choice = machines.choose_link(machine.facts({"enP7s7": "10.1.1.5/16"}, ()))
    assert (choice.shape, choice.interface, choice.rdma) == ("none", "", ())
    assert choice.problems == ("no link of a RoCE device is up",)


def test_three_links_are_neither() -> None:
    choice = machines.choose_link(machine.facts(PAIR_ADDRESSES, RING[:3]))
    assert choice.problems[-1] == "3 links are up: a pair or a switch has two, a ring of three machines four"


def test_no_two_interfaces_may_share_a_subnet() -> None:
    same = {"enp1s0f1np1": "192.168.177.11/24", "enP2p1s0f1np1": "192.168.177.12/24"}
    choice = machines.choose_link(machine.facts(same, machine.PAIR))
    assert choice.problems == ("enp1s0f1np1 and enP2p1s0f1np1 share the subnet 192.168.177.0/24",)
    wide = {**PAIR_ADDRESSES, "enP7s7": "192.168.0.9/16"}
    problems = machines.address_problems(machine.facts(wide, machine.PAIR))
    assert problems == (
        "enp1s0f1np1 and enP7s7 share the subnet 192.168.0.0/16",
        "enP2p1s0f1np1 and enP7s7 share the subnet 192.168.0.0/16",
    )
    others = {**PAIR_ADDRESSES, "docker0": "172.17.0.1/16", "br0": "172.17.0.9/16"}
    assert machines.address_problems(machine.facts(others, machine.PAIR)) == ()


# What a machine reports.

HERE = "unix:///var/run/docker.sock"


def test_its_interfaces_and_its_clock(tmp_path: Path) -> None:
    folders = machine.network(tmp_path, machine.PAIR, {"enp1s0f1np1": "192.168.177.11/24"})
    folders["BUILDER_DEV"] = str(tmp_path / "dev")
    environ = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", **folders}
    facts = machines.gather_facts(environ, HERE)
    assert [link.device for link in facts.links if link.is_up] == list(machine.PAIR)
    interface = facts.interface("enp1s0f1np1")
    assert interface is not None
    assert (interface.address, interface.is_up) == ("192.168.177.11", True)
    assert facts.verbs == ()
    assert abs(facts.clock_offset) <= facts.clock_error
    assert facts.name == os.uname().nodename.partition(".")[0]


def test_its_links_and_its_models(tmp_path: Path) -> None:
    machine.sysfs(tmp_path / "sys", *machine.PAIR)
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    (tmp_path / "dev/infiniband/uverbs0").touch()
    snapshot = tmp_path / "hub/models--Org--Model-1B/snapshots/0123456789"
    snapshot.mkdir(parents=True)
    environ = {**os.environ, "BUILDER_SYSFS": str(tmp_path / "sys"), "BUILDER_DEV": str(tmp_path / "dev")}
    facts = machines.gather_facts(environ, HERE, str(tmp_path / "hub"))
    assert {link.device: (link.interface, link.is_up) for link in facts.links} == {
        device: (name, device in machine.PAIR) for device, name in machine.LINKS.items()
    }
    assert facts.verbs == ("uverbs0",)
    assert facts.commits("Org/Model-1B") == {"0123456789"}
    assert facts.commits("Org/Other") == frozenset()
    assert facts.interface("lo") is not None


def test_the_kernel_and_the_driver_of_a_gb10(tmp_path: Path) -> None:
    spark_proc.write_whole(tmp_path / "proc")
    environ = {**os.environ, "BUILDER_ROOT": str(tmp_path)}
    facts = machines.gather_facts(environ, HERE)
    assert (facts.machine.kernel, facts.machine.driver) == ("6.17.0-1032-nvidia", "580.95.05")
    assert machines.has_gb10(facts.machine)
    (tmp_path / "proc/driver/nvidia/version").unlink()
    assert machines.gather_facts(environ, HERE).machine.driver == ""
    spark_proc.write(tmp_path / "proc", available=20, model="NVIDIA H200")
    assert not machines.has_gb10(machines.gather_facts(environ, HERE).machine)


def test_a_machine_without_roce_says_so(tmp_path: Path) -> None:
    facts = machines.gather_facts({**os.environ, "BUILDER_SYSFS": str(tmp_path)}, HERE)
    assert facts.links == ()


def test_a_folder_of_models_may_be_in_the_home(tmp_path: Path) -> None:
    (tmp_path / "ai models/hub/models--gpt2/snapshots/abc").mkdir(parents=True)
    facts = machines.gather_facts({**os.environ, "HOME": str(tmp_path)}, HERE, "~/ai models/hub")
    assert facts.commits("gpt2") == {"abc"}


@pytest.mark.parametrize(
    "text", ["", "Welcome to spark1\n", "time 1\nname a\naddresses [{}]\n", "time x\nname a\naddresses []"]
)
def test_anything_else_is_an_error(text: str) -> None:
    with pytest.raises(NodeError, match="the list of interfaces cannot be read"):
        machines.parse_facts(text, 0, 1)


def test_a_machine_that_is_reached_by_tcp_is_not_asked() -> None:
    with pytest.raises(NodeError, match="the engine of the node is at tcp://10.0.0.1:2375"):
        machines.gather_facts(os.environ, "tcp://10.0.0.1:2375")

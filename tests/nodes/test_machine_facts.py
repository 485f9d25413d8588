"""What a machine says of itself: through the program of NVIDIA, and by the kernel's files where it is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.base.errors import NodeError
from builder.moving import node_facts
from tests import spark_proc
from tests.nodes import machine

HERE = "unix:///var/run/docker.sock"


def test_ibdev2netdev_is_asked(tmp_path: Path) -> None:
    machine.programs(tmp_path / "bin", machine.PAIR, {"enp1s0f1np1": "192.168.177.11/24"})
    environ = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "BUILDER_DEV": str(tmp_path / "dev")}
    facts = node_facts.gather_facts(environ, HERE)
    assert [link.device for link in facts.links if link.is_up] == list(machine.PAIR)
    interface = facts.interface("enp1s0f1np1")
    assert interface is not None
    assert (interface.address, interface.is_up) == ("192.168.177.11", True)
    assert facts.verbs == ()
    assert abs(facts.clock_offset) <= facts.clock_error
    assert facts.name == os.uname().nodename.partition(".")[0]


def test_the_kernels_files_say_the_same(tmp_path: Path) -> None:
    machine.sysfs(tmp_path / "sys", *machine.PAIR)
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    (tmp_path / "dev/infiniband/uverbs0").touch()
    snapshot = tmp_path / "hub/models--Org--Model-1B/snapshots/0123456789"
    snapshot.mkdir(parents=True)
    environ = {**os.environ, "BUILDER_SYSFS": str(tmp_path / "sys"), "BUILDER_DEV": str(tmp_path / "dev")}
    facts = node_facts.gather_facts(environ, HERE, str(tmp_path / "hub"))
    assert {link.device: (link.interface, link.is_up) for link in facts.links} == {
        device: (name, device in machine.PAIR) for device, name in machine.LINKS.items()
    }
    assert facts.verbs == ("uverbs0",)
    assert facts.commits("Org/Model-1B") == {"0123456789"}
    assert facts.commits("Org/Other") == frozenset()
    assert facts.interface("lo") is not None


def test_the_kernel_and_the_driver_of_a_gb10(tmp_path: Path) -> None:
    spark_proc.write_whole(tmp_path / "proc")
    environ = {**os.environ, "BUILDER_PROC": str(tmp_path / "proc")}
    facts = node_facts.gather_facts(environ, HERE)
    assert (facts.kernel, facts.driver) == ("6.17.0-1032-nvidia", "580.95.05")
    (tmp_path / "proc/driver/nvidia/version").unlink()
    assert node_facts.gather_facts(environ, HERE).driver == ""
    spark_proc.write(tmp_path / "proc", available=20, model="NVIDIA H200")
    assert node_facts.gather_facts(environ, HERE).driver is None


def test_a_machine_without_roce_says_so(tmp_path: Path) -> None:
    facts = node_facts.gather_facts({**os.environ, "BUILDER_SYSFS": str(tmp_path)}, HERE)
    assert facts.links == ()


def test_a_folder_of_models_may_be_in_the_home(tmp_path: Path) -> None:
    (tmp_path / "ai models/hub/models--gpt2/snapshots/abc").mkdir(parents=True)
    facts = node_facts.gather_facts({**os.environ, "HOME": str(tmp_path)}, HERE, "~/ai models/hub")
    assert facts.commits("gpt2") == {"abc"}


@pytest.mark.parametrize(
    "text", ["", "Welcome to spark1\n", "time 1\nname a\naddresses [{}]\n", "time x\nname a\naddresses []"]
)
def test_anything_else_is_an_error(text: str) -> None:
    with pytest.raises(NodeError, match="does not say which interfaces"):
        node_facts.parse_facts(text, 0, 1)


def test_a_machine_that_is_reached_by_tcp_is_not_asked() -> None:
    with pytest.raises(NodeError, match="reached at tcp://10.0.0.1:2375"):
        node_facts.gather_facts(os.environ, "tcp://10.0.0.1:2375")

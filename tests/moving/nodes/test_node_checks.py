"""What builder.yaml says of a node's link, held against its machine."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.definitions.configuration import Node
from builder.moving import machines
from builder.moving.machines import MachineFacts
from tests import spark_proc
from tests.moving.nodes import machine

if TYPE_CHECKING:
    from pathlib import Path

    from builder.base.events import Diagnosis


ADDRESSES = {"enp1s0f1np1": "192.168.177.11/24", "enP2p1s0f1np1": "192.168.178.11/24"}
ONE = Node("one", "ssh://one", None, "192.168.177.11", "enp1s0f1np1", machine.PAIR)
TWO = Node("two", "ssh://two", None, "192.168.177.12", "enp1s0f1np1", machine.PAIR)
FACTS = machine.facts(ADDRESSES, machine.PAIR, down=("enp1s0f0np0",))


def wrong(node: Node, facts: MachineFacts = FACTS, other: Node = TWO) -> list[tuple[str, str, str]]:
    checks = machines.check_links(node, (node, other), facts)
    return [(check.subject, check.verdict, f"{check.message} → {check.remedy}") for check in checks if check.remedy]


def test_all_is_well() -> None:
    assert [
        (check.subject, check.verdict, check.message) for check in machines.check_links(ONE, (ONE, TWO), FACTS)
    ] == [
        ("interface", "ok", "enp1s0f1np1, 192.168.177.11"),
        ("devices", "ok", "rocep1s0f1, roceP2p1s0f1"),
        ("subnets", "ok", "no subnet is shared: 192.168.177.0/24"),
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("enp1s0f1np2", "the machine has no interface enp1s0f1np2 → did you mean `enp1s0f1np1`?"),
        ("eth0", "the machine has no interface eth0 → interfaces that are up: enp1s0f1np1, enP2p1s0f1np1"),
        ("enp1s0f0np0", "enp1s0f0np0 is down → check that the cable is in, and that the other end is up"),
        (
            "enP2p1s0f1np1",
            "enP2p1s0f1np1 has 192.168.178.11, but builder.yaml says 192.168.177.11 → "
            "`builder nodes discover` fills it in",
        ),
    ],
)
def test_a_wrong_interface(name: str, message: str) -> None:
    first, *_ = wrong(replace(ONE, interface=name))
    assert first == ("interface", "error", message)


def test_wrong_devices() -> None:
    assert wrong(replace(ONE, rdma=("rocep1s0f2", "rocep1s0f0"))) == [
        ("devices", "error", "the machine has no RoCE device rocep1s0f2 → did you mean `rocep1s0f1`?"),
        (
            "devices",
            "error",
            "the link of rocep1s0f0 (enp1s0f0np0) is down → check that the cable is in, and that the other end is up",
        ),
    ]
    without = machine.facts(ADDRESSES, machine.PAIR, verbs=False)
    (only,) = wrong(ONE, without)
    assert only[:2] == ("devices", "error")
    assert only[2].startswith("/dev/infiniband is missing or empty")


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
            "two (10.0.0.2) is not in any subnet of enp1s0f1np1 → nodes that serve together must share a link",
        )
    ]
    assert wrong(ONE, other=replace(TWO, address="spark2.lan")) == []


def test_a_shared_subnet() -> None:
    facts = machine.facts({**ADDRESSES, "enP2p1s0f1np1": "192.168.177.13/24"}, machine.PAIR)
    ((subject, verdict, message),) = wrong(ONE, facts)
    assert (subject, verdict) == ("subnets", "error")
    assert "share the subnet 192.168.177.0/24" in message


# What is found on a DGX Spark, and what to do: a folder stands in for its /proc, a script for `nvidia-smi`.


def found(proc: Path, programs: Path, architectures: dict[str, str] | None = None) -> dict[str, Diagnosis]:
    environ = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    facts = machines.read_spark_facts(environ, proc)
    assert facts is not None
    return {
        diagnosis.subject: diagnosis for diagnosis in machines.check_spark(facts, architectures or {"tf5": "12.1a"})
    }


def test_a_spark_with_nothing_wrong(tmp_path: Path) -> None:
    diagnoses = found(spark_proc.write_whole(tmp_path / "proc"), spark_proc.nvidia_smi(tmp_path / "bin"))
    assert {diagnosis.verdict for diagnosis in diagnoses.values()} == {"ok"}
    assert list(diagnoses) == ["driver", "kernel", "GPU arch", "memory", "swap", "earlyoom"]


def test_another_machine_is_not_looked_at(tmp_path: Path) -> None:
    spark_proc.write(tmp_path, available=20, model="NVIDIA H200")
    assert machines.read_spark_facts(os.environ, tmp_path) is None
    assert machines.read_spark_facts(os.environ, tmp_path / "none") is None


def test_a_driver_too_old_for_the_images(tmp_path: Path) -> None:
    proc = spark_proc.write_whole(tmp_path / "proc", driver="570.133.20")
    driver = found(proc, spark_proc.nvidia_smi(tmp_path / "bin"))["driver"]
    assert driver.verdict == "error"
    assert driver.message == "NVIDIA 570.133.20; CUDA 13 in the images requires 580 or later"
    assert "apt full-upgrade" in driver.remedy


def test_a_driver_that_is_not_loaded(tmp_path: Path) -> None:
    proc = spark_proc.write_whole(tmp_path / "proc")
    (proc / "driver/nvidia/version").unlink()
    assert found(proc, spark_proc.nvidia_smi(tmp_path / "bin"))["driver"].verdict == "error"


def test_an_nvidia_smi_that_fails_or_says_something_else(tmp_path: Path) -> None:
    proc = spark_proc.write_whole(tmp_path / "proc")
    failing = spark_proc.nvidia_smi(tmp_path / "a", "Failed to initialize NVML: Unknown Error", code=9)
    assert "Failed to initialize NVML" in found(proc, failing)["GPU arch"].message
    other = found(proc, spark_proc.nvidia_smi(tmp_path / "b", "No devices were found"))["GPU arch"]
    assert (other.verdict, other.message[-29:]) == ("error", "reports No devices were found")


def test_definitions_for_another_gpu_are_named(tmp_path: Path) -> None:
    proc, programs = spark_proc.write_whole(tmp_path / "proc"), spark_proc.nvidia_smi(tmp_path / "bin")
    built_for = {"tf5": "12.1a", "many": "9.0a;12.1+PTX", "server": "12.0a", "family": "12.1f"}
    arch = found(proc, programs, built_for)["GPU arch"]
    assert arch.message == "compute capability 12.1, but these definitions build for another GPU: server (12.0a)"


def test_memory_that_others_hold(tmp_path: Path) -> None:
    proc = spark_proc.write_whole(tmp_path / "proc")
    (proc / "meminfo").write_text(spark_proc.meminfo(9), encoding="utf-8")
    memory = found(proc, spark_proc.nvidia_smi(tmp_path / "bin"))["memory"]
    assert (memory.verdict, memory.message) == ("warning", "9 of 120 GiB available, shared with the GPU")
    assert "builder stop" in memory.remedy


def test_swap_in_use_and_none(tmp_path: Path) -> None:
    programs = spark_proc.nvidia_smi(tmp_path / "bin")
    used = found(spark_proc.write_whole(tmp_path / "a", swap=(16, 8)), programs)["swap"]
    assert (used.verdict, used.message) == ("warning", "8.0 of 16 GiB in use")
    none = found(spark_proc.write_whole(tmp_path / "b", swap=(0, 0)), programs)["swap"]
    assert (none.verdict, none.message[:4]) == ("ok", "none")


def test_a_machine_without_earlyoom(tmp_path: Path) -> None:
    proc = spark_proc.write_whole(tmp_path / "proc", earlyoom=False)
    earlyoom = found(proc, spark_proc.nvidia_smi(tmp_path / "bin"))["earlyoom"]
    assert earlyoom.verdict == "warning"
    assert "apt install earlyoom" in earlyoom.remedy

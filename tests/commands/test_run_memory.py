"""`run` and `restart` on a machine whose GPU shares its memory: files stand in for those of a DGX Spark, the engine and
its containers are real. A GPU is asked for, which this engine lacks, so what is not refused fails a moment later."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base import machine_record, processes
from builder.base.errors import ConflictError, ServeFailedError
from builder.base.events import Message
from builder.commands import servers
from builder.engine import containers, machine
from builder.engine.client import Endpoint
from builder.serving.preparation import ServeRequest
from tests import projects, spark_proc
from tests.commands.serving import Kitchen
from tests.workspaces import workspace

if TYPE_CHECKING:
    from builder.numbers.workspace import Workspace


pytestmark = pytest.mark.engine
NO_GPU = "could not select device driver"


def use_gpu(kitchen: Kitchen) -> None:
    file = kitchen.project.dockerfiles / "served/image.yaml"
    file.write_text(file.read_text().replace("gpus: none", "gpus: all"))


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def spark(kitchen: Kitchen, endpoint: Endpoint, messages: list[str], tmp_path: Path) -> Workspace:
    def report(event: object) -> None:
        if isinstance(event, Message):
            messages.append(event.text)

    return workspace(
        kitchen.project, endpoint, {**os.environ, **kitchen.environ, "BUILDER_ROOT": str(tmp_path)}, report
    )


@pytest.mark.alone
def test_a_second_server_beside_one_that_has_most_of_it(
    kitchen: Kitchen, spark: Workspace, endpoint: Endpoint, tmp_path: Path, messages: list[str]
) -> None:
    spark_proc.write(tmp_path / "proc", available=20)
    servers.run_server(spark, ServeRequest("chat", {}), detach=True)
    use_gpu(kitchen)
    kitchen.recipe("--gpu-memory-utilization 0.5", file="second", name=f"{kitchen.name}-b", port=processes.free_port())
    with pytest.raises(ConflictError) as caught:
        servers.run_server(spark, ServeRequest("second", {}), detach=True)
    # Other tests may serve on this engine.
    needed, _, others = caught.value.message.partition(" while ")
    assert needed == (
        "the server needs 59.8 GiB (0.5 of 119.7 GiB), but this machine has only 20.0 GiB of memory available"
    )
    servers_there, _, end = others.partition(": ")
    assert (kitchen.name in servers_there, end) == (True, "nothing was started")
    assert re.search(r"`builder stop \S+` makes room", caught.value.hint)
    assert containers.find_container(endpoint, f"{kitchen.name}-b") is None

    with pytest.raises(ServeFailedError, match=NO_GPU):
        servers.run_server(spark, ServeRequest("second", {"gpu_memory_utilization": "0.16"}), detach=True)
    assert not [text for text in messages if "available" in text]
    with pytest.raises(ServeFailedError, match=NO_GPU):
        servers.run_server(spark, ServeRequest("second", {}, force=True), detach=True)
    assert re.search(
        rf"20.0 GiB of memory available while .*{kitchen.name}\b.*; starting the server anyway$", messages[-1]
    )


def test_a_share_that_leaves_less_than_the_reserve(kitchen: Kitchen, spark: Workspace, tmp_path: Path) -> None:
    spark_proc.write(tmp_path / "proc", available=115)
    use_gpu(kitchen)
    kitchen.recipe("--gpu-memory-utilization 0.95")
    with pytest.raises(ConflictError, match=r"leave 6\.0 GiB: less than the reserve of 8\.0 GiB: nothing was started"):
        servers.run_server(spark, ServeRequest("chat", {}), detach=True)
    projects.write(kitchen.project.root / "builder.yaml", "reserve: 4g\n")
    with pytest.raises(ServeFailedError, match=NO_GPU):
        servers.run_server(spark, ServeRequest("chat", {}), detach=True)


def test_a_restart_is_refused_while_the_server_still_runs(
    kitchen: Kitchen, spark: Workspace, endpoint: Endpoint, tmp_path: Path
) -> None:
    spark_proc.write(tmp_path / "proc", available=3)
    servers.run_server(spark, ServeRequest("chat", {}), detach=True)
    before = containers.find_container(endpoint, kitchen.name)
    use_gpu(kitchen)
    with pytest.raises(ConflictError, match="less than the reserve"):
        servers.restart_server(spark, ServeRequest("chat", {"gpu_memory_utilization": "0.99"}), detach=True)
    after = containers.find_container(endpoint, kitchen.name)
    assert before is not None
    assert after is not None
    assert (after.id, after.is_up) == (before.id, True)
    # What it has itself is free when it is stopped.
    with pytest.raises(ServeFailedError, match=NO_GPU):
        servers.restart_server(spark, ServeRequest("chat", {}), detach=True)


def test_a_machine_with_another_gpu_is_not_looked_at(kitchen: Kitchen, spark: Workspace, tmp_path: Path) -> None:
    spark_proc.write(tmp_path / "proc", available=1, model="NVIDIA H200")
    use_gpu(kitchen)
    with pytest.raises(ServeFailedError, match=NO_GPU):
        servers.run_server(spark, ServeRequest("chat", {}), detach=True)


def test_on_another_machine_a_container_of_the_image_reads_it(kitchen: Kitchen, endpoint: Endpoint) -> None:
    files = machine.read_in_container(endpoint, f"{kitchen.repository}:2")
    assert files["proc/sys/kernel/osrelease"] == Path("/proc/sys/kernel/osrelease").read_text(encoding="utf-8")
    files["proc/driver/nvidia/gpus/0/information"] = "Model: \t\t NVIDIA GB10\n"
    record = machine_record.parse_machine(files, {})
    assert record.gpu == "NVIDIA GB10"
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    total = next(line for line in lines if line.startswith("MemTotal"))
    assert record.memory == int(total.split()[1]) * 1024
    assert 0 < record.available < record.memory

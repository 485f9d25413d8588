"""What `init` tells of a machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from builder.commands import init
from tests import projects, spark_proc
from tests.conftest import WITHOUT_ENGINE
from tests.moving.migration import checkouts

if TYPE_CHECKING:
    from pathlib import Path


def test_a_spark_tells_its_chip_memory_and_checkouts(tmp_path: Path) -> None:
    checkouts.make(tmp_path / "home/spark-vllm-docker")
    programs = spark_proc.nvidia_smi(tmp_path / "programs")
    environ = {**WITHOUT_ENGINE, "HOME": str(tmp_path / "home"), "PATH": f"{programs}:{os.environ['PATH']}"}
    project = projects.make(tmp_path / "project")
    proc = spark_proc.write_whole(tmp_path / "proc")
    findings = {each.subject: each for each in init.machine_findings(project, environ, proc)}
    assert findings["machine"].message == "DGX Spark: GB10 (sm_121), driver 580.95.05, 129 GB of memory"
    assert findings["engine"].verdict == "warning"
    checkout = findings["spark-vllm-docker"]
    assert "recipe" in checkout.message
    assert checkout.remedy == f"`builder migrate {tmp_path}/home/spark-vllm-docker` migrates it"


def test_another_machine_says_that_it_is_none(tmp_path: Path) -> None:
    project = projects.make(tmp_path / "project")
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "meminfo").write_text("MemTotal:  16000000 kB\n", encoding="utf-8")
    findings = [*init.machine_findings(project, {**WITHOUT_ENGINE, "HOME": str(tmp_path)}, proc)]
    assert [each.subject for each in findings] == ["machine", "engine"]
    assert findings[0].message.startswith("not a DGX Spark: ")
    assert findings[0].message.endswith(", 16.4 GB of memory")

"""Export for several nodes: one text for each, in a folder or one after the other."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest
import yaml

from tests import locks, projects
from tests.cli.test_recipes import project, run

if TYPE_CHECKING:
    from pathlib import Path

    from builder.base.project import Project


__all__ = ["project"]

NODES = """\
nodes:
  one: {engine: "ssh://me@one", address: 10.0.0.1, interface: enp1s0f1np1, rdma: [rocep1s0f1, roceP2p1s0f1]}
  two: {engine: "ssh://me@two", address: 10.0.0.2, interface: enp1s0f0np0, rdma: [rocep1s0f0], models: /data/hf}
  three: ssh://me@three
"""
ALL = ("--node", "one", "--node", "two", "--node", "three")


@pytest.fixture
def big(project: Project) -> Project:
    """A project with a recipe for two machines, and three nodes."""
    text = "name: big\nmodel: Org/Model-1B\ncontainer: small\ncluster_only: true\n"
    projects.write(project.recipes / "big.yaml", f"{text}command: vllm serve Org/Model-1B --port 8000 -tp 2\n")
    projects.write(project.root / "builder.yaml", NODES)
    locks.write(project, (1, 2), current=2, paired=1)
    return project


def test_a_compose_file_for_each_node(big: Project, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    done = run(big, "export", "big", "--format", "compose", *ALL, "--output", str(folder))
    assert "tp 2 uses 2 of the nodes: one, two; not used: three" in " ".join(done.stderr.split())
    assert done.stdout.splitlines()[-1] == f"start {folder}/one.yaml last"
    assert sorted(path.name for path in folder.iterdir()) == ["one.yaml", "two.yaml"]
    services = [yaml.safe_load((folder / f"{name}.yaml").read_text())["services"] for name in ("one", "two")]
    one, two = (service["vllm-big"] for service in services)
    place = "--nnodes 2 --node-rank {} --master-addr 10.0.0.1 --master-port 29501"
    assert " ".join(one["command"]).endswith(f"vllm serve Org/Model-1B --port 8000 -tp 2 {place.format(0)}")
    assert " ".join(two["command"]).endswith(f"-tp 2 {place.format(1)} --headless")
    assert (one["devices"], one["cap_add"]) == (["/dev/infiniband:/dev/infiniband"], ["IPC_LOCK"])
    interfaces = [each["environment"]["NCCL_SOCKET_IFNAME"] for each in (one, two)]
    assert interfaces == ["enp1s0f1np1", "enp1s0f0np0"]
    assert [each["environment"]["NCCL_IB_HCA"] for each in (one, two)] == ["rocep1s0f1,roceP2p1s0f1", "rocep1s0f0"]
    assert ("healthcheck" in one, "healthcheck" in two) == (True, False)
    assert {volume["source"] for volume in two["volumes"]} >= {"/data/hf"}
    assert one["labels"]["builder.serve.nodes"] == two["labels"]["builder.serve.nodes"] == "one,two"


def test_a_script_for_each_node(big: Project, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    run(big, "export", "big", "--format", "script", "--node", "two", "--node", "one", "--output", str(folder))
    for name in ("one.sh", "two.sh"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o755
    assert "--master-addr 10.0.0.2" in (folder / "one.sh").read_text()


def test_texts_one_after_the_other(big: Project) -> None:
    done = run(big, "export", "big", "--format", "compose", "--node", "one", "--node", "two")
    assert done.stdout.startswith("---\n# node one\n")
    assert [list(document["services"]) for document in yaml.safe_load_all(done.stdout)] == [["vllm-big"], ["vllm-big"]]
    done = run(big, "export", "big", "--format", "script", "--node", "one", "--node", "two", "--ray")
    assert done.stdout.startswith("# ---- node one ----\n#!/bin/sh\n")
    assert "ray start --block --head" in done.stdout


def test_what_is_refused(big: Project) -> None:
    done = run(big, "export", "big", "--format", "compose", "--node", "one", "--node", "two", "--tp", "4", code=2)
    assert "its command requires 4 machines (tp 4), but there are only 2" in done.stderr
    done = run(big, "export", "big", "--format", "recipe", "--node", "one", code=2)
    assert "`--node` and `--ray` require `--format compose` or `--format script`" in done.stderr
    done = run(big, "export", "big", "--format", "compose", "--node", "four", code=2)
    assert "builder.yaml has no node `four`" in done.stderr
    projects.write(big.root / "builder.yaml", "{}\n")
    assert "says `cluster_only`" in run(big, "export", "big", "--format", "compose", code=2).stderr

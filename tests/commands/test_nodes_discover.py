"""``builder nodes discover``: two machines by ssh, with a stand-in for their network, and builder.yaml then."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.base.project import Project
from tests import fake_ssh, projects
from tests.conftest import run_command
from tests.moving.nodes import machine

Builder = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project/dockerfiles").mkdir(parents=True)
    return tmp_path / "project"


@pytest.fixture
def builder(project: Path, tmp_path: Path) -> Builder:
    """The command; the machine behind ssh, and this one, have two links that are up, at 10.0.0.2 and 10.0.0.1."""
    environ = {**os.environ, **fake_ssh.make(tmp_path / "bin", tmp_path / "far"), "COLUMNS": "80"}
    machine.network(tmp_path / "other", machine.PAIR, {"enp1s0f1np1": "10.0.0.2/24"})
    environ |= machine.network(tmp_path, machine.PAIR, {"enp1s0f1np1": "10.0.0.1/24"})
    environ["FAKE_PATH"] = f"{tmp_path}/other/bin:{os.environ['PATH']}"

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return run_command(Project(project), *arguments, code=code, environ=environ)

    return run


@pytest.mark.slow
def test_it_shows_and_writes_on_agreement(project: Path, builder: Builder) -> None:
    file = project / "builder.yaml"
    projects.write(file, "nodes:\n  # here\n  one: unix:///var/run/docker.sock\n  two: ssh://me@two  # there\n")
    before = file.read_text()
    done = builder("nodes", "discover")
    assert "nothing was written; --yes writes without asking" in done.stdout
    assert file.read_text() == before
    assert "+    address: 10.0.0.2" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())

    assert "builder.yaml was written" in builder("nodes", "discover", "--yes").stdout
    assert file.read_text() == (
        "nodes:\n  # here\n  one:\n    engine: unix:///var/run/docker.sock\n    address: 10.0.0.1\n"
        "    interface: enp1s0f1np1\n    rdma: [rocep1s0f1, roceP2p1s0f1]\n"
        "  two:  # there\n    engine: ssh://me@two\n    address: 10.0.0.2\n"
        "    interface: enp1s0f1np1\n    rdma: [rocep1s0f1, roceP2p1s0f1]\n"
    )
    assert "builder.yaml already has these settings" in builder("nodes", "discover", "--yes").stdout


def test_a_machine_that_cannot_be_asked_changes_nothing_of_its_own(project: Path, builder: Builder) -> None:
    text = "nodes:\n  one: unix:///var/run/docker.sock\n  far: tcp://10.0.0.9:2375\n"
    projects.write(project / "builder.yaml", text)
    done = builder("nodes", "discover", "--yes", "--json", code=1)
    document = json.loads(done.stdout)
    one, far = document["nodes"]
    assert (one["address"], one["rdma"], one["link"]) == ("10.0.0.1", list(machine.PAIR), "pair or switch")
    assert far["error"].startswith("the engine of the node is at tcp://10.0.0.9:2375")
    assert document["written"] is True
    assert "  far: tcp://10.0.0.9:2375\n" in (project / "builder.yaml").read_text()
    assert "nothing to write: far could not be read" in builder("nodes", "discover", code=1).stdout


def test_only_the_nodes_that_are_named(project: Path, builder: Builder) -> None:
    projects.write(project / "builder.yaml", "nodes:\n  one: unix:///x.sock\n  two: ssh://me@two\n")
    document = json.loads(builder("nodes", "discover", "two", "--json").stdout)
    assert [node["node"] for node in document["nodes"]] == ["two"]
    assert "builder.yaml has no node `three`" in builder("nodes", "discover", "three", code=2).stderr


def test_without_nodes_it_says_what_to_do(builder: Builder) -> None:
    done = builder("nodes", "discover", code=2)
    assert "builder.yaml names no nodes" in done.stderr
    assert "name them there: `nodes: {spark1: " in done.stderr


def test_json_goes_after_the_command(builder: Builder) -> None:
    assert "`--json` goes after `discover`" in builder("nodes", "--json", "discover", code=2).stderr
    assert json.loads(builder("nodes", "--json").stdout)["nodes"] == []

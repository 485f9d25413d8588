"""Nodes that do not answer: all are asked at once, and none is waited for longer than its limit."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.base.errors import EngineError, NodeError
from builder.base.events import Message
from builder.base.project import Project
from builder.engine.client import Endpoint
from builder.moving import machines
from tests import program, projects
from tests.conftest import WITHOUT_ENGINE, command, run_command


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a machine that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.slow
def test_a_node_that_hangs_is_left_at_its_limit_and_the_others_are_known() -> None:
    said: list[str] = []

    def work(node: str, _engine: Endpoint) -> str:
        if node == "broken":
            raise EngineError("no engine")
        time.sleep(600 if node.startswith("hangs") else 0)
        return f"{node} answered"

    engines = {name: Endpoint(f"tcp://{name}:1", (), "") for name in ("hangs1", "well", "broken", "hangs2")}
    began = time.monotonic()
    answers = machines.ask_machines(
        engines, work, 2, lambda event: said.append(event.text) if isinstance(event, Message) else None, "wait longer"
    )
    assert 2 <= time.monotonic() - began < 300
    assert list(answers) == list(engines)
    assert answers["well"] == "well answered"
    assert isinstance(answers["broken"], EngineError)
    for name in ("hangs1", "hangs2"):
        assert isinstance(overdue := answers[name], NodeError)
        assert (overdue.message, overdue.hint) == ("the node did not answer within 2 s", "wait longer")
    assert said == ["waiting for hangs1, hangs2, for at most 2 s"]


@pytest.mark.slow
def test_a_bug_on_one_node_is_raised_before_the_others_answer() -> None:
    def work(node: str, _engine: Endpoint) -> str:
        if node == "broken":
            raise ZeroDivisionError
        time.sleep(600)
        return node

    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        machines.ask_machines({name: Endpoint(f"tcp://{name}:1", (), "") for name in ("hangs", "broken")}, work)
    assert time.monotonic() - began < 300


@pytest.mark.slow
def test_without_an_engine_here_no_silent_node_delays_the_error(tmp_path: Path, silent: str) -> None:
    (tmp_path / "dockerfiles").mkdir()
    projects.write(tmp_path / "builder.yaml", json.dumps({"node_timeout": 600, "nodes": {"spark1": silent}}))
    began = time.monotonic()
    done = program.run(command(Project(tmp_path), "status"), env={**os.environ, **WITHOUT_ENGINE})
    assert time.monotonic() - began < 300
    assert done.returncode == 5, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", [["nodes"], ["nodes", "check"]])
def test_nodes_that_do_not_answer_end_the_command_with_1(tmp_path: Path, silent: str, words: list[str]) -> None:
    settings = {"node_timeout": 2, "nodes": {"spark1": silent, "spark2": silent}}
    (tmp_path / "dockerfiles").mkdir()
    projects.write(tmp_path / "builder.yaml", json.dumps(settings))
    began = time.monotonic()
    done = program.run(command(Project(tmp_path), *words))
    assert time.monotonic() - began < 300
    assert done.returncode == 1, done.stderr
    assert "waiting for spark1, spark2, for at most 2 s" in done.stderr
    assert done.stdout.count("did not answer within 2 s") >= 2


@pytest.mark.slow
@pytest.mark.parametrize(("words", "code"), [(["nodes"], 1), (["nodes", "check"], 1), (["nodes", "discover"], 1)])
def test_a_docker_context_that_does_not_exist_is_the_error_of_its_node_only(
    tmp_path: Path, words: list[str], code: int
) -> None:
    (tmp_path / "dockerfiles").mkdir()
    nodes = {"spark1": "no-such-context", "spark2": "tcp://127.0.0.1:1"}
    projects.write(tmp_path / "builder.yaml", json.dumps({"nodes": nodes}))
    done = run_command(Project(tmp_path), *words, code=code)
    shown = " ".join(f"{done.stdout} {done.stderr}".split())
    assert "the docker context `no-such-context` (from node spark1) does not exist" in shown
    assert "spark2" in shown

"""The settings of a server's containers, planned from files alone; tests/commands tries them with a real engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import UsageError
from builder.definitions import container
from builder.definitions.configuration import RequestedOptions
from builder.lock.model import Lock
from builder.serving import preparation
from builder.serving.preparation import ServeRequest, ServerSettings
from builder.serving.selection import select_any
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path


NODES = """\
env: {A: builder.yaml, B: builder.yaml}
publish: [9000]
nodes:
  one: {engine: default, address: 10.0.0.1, models: ~/hf, env: {B: node, C: node}}
  two: {engine: default, address: 10.0.0.2}
"""
RECIPE = "name: chat\nmodel: Org/Model\ncontainer: others/image:tag\ncommand: vllm serve Org/Model\n"


def plan(root: Path, typed: RequestedOptions, nodes: tuple[str, ...] = ("one", "two")) -> ServerSettings:
    project = projects.make(root)
    projects.write(root / "builder.yaml", NODES)
    projects.write(project.recipes / "theirs.yaml", RECIPE)
    selection = select_any(project, Lock(), "theirs")
    request = ServeRequest("theirs", {}, (), nodes, container=typed)
    return preparation.settings(project, selection, request, {"HOME": "/home/ann"})


def test_the_command_line_counts_before_a_node_and_that_before_builder_yaml(tmp_path: Path) -> None:
    head, second = plan(tmp_path, RequestedOptions(env=("C=typed", "D_KEY=hidden"))).containers
    assert [head.env[name] for name in "ABC"] == ["builder.yaml", "node", "typed"]
    assert [second.env[name] for name in "ABC"] == ["builder.yaml", "builder.yaml", "typed"]
    assert "D_KEY" in head.secrets
    assert "hidden" not in f"{head}{second}"


def test_on_every_node_earlyoom_is_beside_all_that_runs_there(tmp_path: Path) -> None:
    plain = plan(tmp_path / "plain", RequestedOptions()).containers
    beside = plan(tmp_path / "beside", RequestedOptions(earlyoom=True)).containers
    assert [settings.argv for settings in beside] == [container.earlyoom_beside(settings.argv) for settings in plain]


def test_memory_that_is_typed_counts_before_that_of_several_nodes(tmp_path: Path) -> None:
    assert {each.memory for each in plan(tmp_path / "a", RequestedOptions(memory="90g")).containers} == {"90g"}
    assert {each.memory for each in plan(tmp_path / "b", RequestedOptions()).containers} == {"110g"}


def test_several_nodes_have_the_network_of_their_machines(tmp_path: Path) -> None:
    assert {each.network for each in plan(tmp_path / "a", RequestedOptions()).containers} == {"host"}
    with pytest.raises(UsageError, match="on one machine only"):
        plan(tmp_path / "b", RequestedOptions(publish=("9000:8000",)))


def test_a_volume_takes_the_place_of_a_node_s_models(tmp_path: Path) -> None:
    inside = "/root/.cache/huggingface"

    def sources(typed: RequestedOptions, folder: str) -> list[str]:
        (settings,) = plan(tmp_path / folder, typed, ("one",)).containers
        return [mount.source for mount in settings.mounts if mount.target.startswith(inside)]

    assert sources(RequestedOptions(), "a") == ["/home/ann/hf"]
    assert sources(RequestedOptions(volumes=(f"/typed:{inside}",)), "b") == ["/typed"]
    assert sources(RequestedOptions(volumes=(f"/typed:{inside}/modules",)), "c") == ["/home/ann/hf", "/typed"]


def test_one_node_publishes_as_this_machine_does(tmp_path: Path) -> None:
    (settings,) = plan(tmp_path, RequestedOptions(), ("one",)).containers
    assert (settings.network, [str(port) for port in settings.ports]) == ("bridge", ["9000:9000", "8000:8000"])
    assert json.loads(settings.labels["builder.serve.port"]) == 8000

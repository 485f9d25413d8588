"""What no start is needed for: a model that is not to be had."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.base.errors import NoImageHelpsError, UsageError
from builder.definitions import command, container
from builder.definitions.configuration import Node, RequestedOptions
from builder.definitions.container import Mount
from builder.definitions.image import ServeSettings
from builder.lock.model import Lock
from builder.serving import preparation
from builder.serving.preparation import ServeRequest, ServerSettings
from builder.serving.selection import select_any
from tests import hub_server, projects
from tests.definitions.recipes.recipe_texts import make
from tests.hub_server import Repo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.hub_server import Hub


COMMIT = "1" * 40


@pytest.fixture
def hub() -> Iterator[Hub]:
    with hub_server.serve() as server:
        yield server


def require(home: Path, arguments: str, *, address: str = "http://127.0.0.1:9", **more: Any) -> None:
    environ = {"HOME": str(home), "HF_ENDPOINT": address, **more.pop("environ", {})}
    home.mkdir(exist_ok=True)
    recipe = make(home, f"vllm serve {arguments}")
    rendered = command.render_command(recipe, {})
    settings = container.settings(recipe, rendered, ServeSettings(), ("small", 1), environ)
    preparation.require_model(rendered, replace(settings, **more), environ, None)


def cached(home: Path) -> None:
    folder = home / ".cache/huggingface/hub/models--Org--M"
    for path, text in (("refs/main", COMMIT), (f"snapshots/{COMMIT}/config.json", "{}"), ("blobs/1", "")):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def test_a_model_that_the_hub_does_not_have_is_refused(tmp_path: Path, hub: Hub) -> None:
    hub.repos["Org/M"] = Repo({COMMIT: {"config.json": b"{}"}}, {"main": COMMIT})
    require(tmp_path, "Org/M", address=hub.url)
    with pytest.raises(NoImageHelpsError, match="nothing was started: .* has no model `Org/Missing`"):
        require(tmp_path, "Org/Missing", address=hub.url)


def test_offline_the_cache_has_to_have_it(tmp_path: Path) -> None:
    offline = {"HF_HUB_OFFLINE": "1"}
    with pytest.raises(NoImageHelpsError, match="HF_HUB_OFFLINE is set, and the cache") as caught:
        require(tmp_path, "Org/M", environ=offline, env=offline)
    assert "unset HF_HUB_OFFLINE" in caught.value.hint
    with pytest.raises(NoImageHelpsError, match="HF_HUB_OFFLINE is set, and the cache") as caught:
        require(tmp_path, "Org/M", env=offline)
    assert "download it first with `builder download Org/M`" in caught.value.hint
    with pytest.raises(NoImageHelpsError, match="TRANSFORMERS_OFFLINE is set, and the cache") as caught:
        require(tmp_path, "Org/M", environ={"TRANSFORMERS_OFFLINE": "1"})
    assert caught.value.hint == "unset TRANSFORMERS_OFFLINE and run the command again"
    cached(tmp_path)
    require(tmp_path, "Org/M", environ=offline)


def test_a_hub_that_does_not_answer_or_another_cache_says_nothing(tmp_path: Path) -> None:
    require(tmp_path, "Org/M")
    theirs = (Mount("/srv/models", "/root/.cache/huggingface", ours=False),)
    require(tmp_path, "Org/M", mounts=theirs, environ={"HF_HUB_OFFLINE": "1"})
    require(tmp_path, "Org/M", env={"HF_HUB_CACHE": "/elsewhere", "HF_HUB_OFFLINE": "1"})


def test_a_folder_that_no_mount_holds_is_the_images_own_and_one_that_is_mounted_has_to_be_there(tmp_path: Path) -> None:
    mounts = (Mount(str(tmp_path / "elsewhere"), "/srv", ours=False), Mount(str(tmp_path), "/srv/models", ours=False))
    require(tmp_path, "/opt/model", mounts=mounts)
    with pytest.raises(
        NoImageHelpsError, match=f"{tmp_path}/m, which the server would find as /srv/models/m, does not exist"
    ):
        require(tmp_path, "/srv/models/m", mounts=mounts)
    (tmp_path / "m").mkdir()
    require(tmp_path, "/srv/models/m", mounts=mounts)


# The folder of models that a container on a node mounts.

ENVIRON = {"HOME": "/home/ann", "USER": "ann"}


@pytest.mark.parametrize(
    ("engine", "written", "mounted"),
    [
        ("ssh://me@spark2", None, None),
        ("ssh://me@spark2", "/data/hf", "/data/hf"),
        ("ssh://ann@spark2", "~/hf", "/home/ann/hf"),
        ("ssh://spark2", "~", "/home/ann"),
        ("unix:///run/docker.sock", "~/hf", "/home/ann/hf"),
        ("office", "~/hf", "/home/ann/hf"),
    ],
)
def test_a_home_folder_is_written_out(engine: str, written: str | None, mounted: str | None) -> None:
    assert preparation.node_model_folder(ENVIRON, Node("two", engine, written)) == mounted


@pytest.mark.parametrize("written", ["~/hf", "hf", "~me/hf"])
def test_a_folder_that_cannot_be_known_is_refused(written: str) -> None:
    message = rf"builder\.yaml: `models: {written}` of node two is not an absolute path"
    with pytest.raises(UsageError, match=message) as caught:
        preparation.node_model_folder(ENVIRON, Node("two", "ssh://me@spark2", written))
    assert "`~` works only for a node with the same user" in caught.value.hint


# The settings of a server's containers, planned from files alone; tests/commands tries them with a real engine.

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
    with pytest.raises(UsageError, match="so it cannot publish ports"):
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

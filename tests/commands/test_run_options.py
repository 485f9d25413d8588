"""What a user adds to the container that serves, with a stand-in for vLLM: the engine and all around it are real."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from builder.base import processes
from builder.definitions import container
from builder.engine import client, containers
from builder.engine.client import Endpoint
from tests import projects
from tests.commands.serving import Kitchen
from tests.conftest import run_command

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.engine

Builder = Callable[..., subprocess.CompletedProcess[str]]
HIDDEN = "not-to-be-seen"


@pytest.fixture
def builder(kitchen: Kitchen, tmp_path: Path) -> Builder:
    folder = tmp_path / "current"
    folder.mkdir()

    def run(*arguments: str, code: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
        more = {**kitchen.environ, **environ}
        return run_command(kitchen.project, *arguments, code=code, environ=more, cwd=folder)

    return run


def inspect(endpoint: Endpoint, name: str) -> dict[str, Any]:
    details: dict[str, Any] = client.request(endpoint, "GET", f"/containers/{name}/json")
    return details


def variables(details: dict[str, Any]) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in details["Config"]["Env"])


def test_volumes_of_all_places_are_there_and_read_only_ones_stay_so(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint, tmp_path: Path
) -> None:
    for folder in ("configured", "project/of_recipe", "current/typed dir"):
        projects.write(tmp_path / folder / "here", folder)
    projects.write(kitchen.project.root / "builder.yaml", f"volumes: ['{tmp_path}/configured:/a', '/nowhere:/b']\n")
    kitchen.recipe(more="volumes: [./of_recipe:/b:ro, /nowhere:/c]\n")
    builder("run", "chat", "--detach", "--volume", "./typed dir:/c")
    argv = ["sh", "-c", "cat /a/here /b/here /c/here; touch /a/new /c/new; touch /b/new"]
    result = containers.execute(endpoint, kitchen.name, argv, 120)
    assert "configuredproject/of_recipecurrent/typed dir" in result.output  # what fails is told before or after
    assert "Read-only file system" in result.output
    assert (tmp_path / "current/typed dir/new").exists()
    assert not (kitchen.project.root / "of_recipe/new").exists()


def test_a_volume_that_is_missing_is_told_and_not_made(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint, tmp_path: Path
) -> None:
    done = builder("run", "chat", "--volume", f"{tmp_path}/mispelt:/models:ro", code=2)
    assert f"the volume {tmp_path}/mispelt:/models:ro cannot be mounted" in done.stderr
    assert not (tmp_path / "mispelt").exists()
    assert containers.find_container(endpoint, kitchen.name) is None


def test_variables_count_in_their_order_and_come_back_after_a_restart(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    projects.write(kitchen.project.root / "builder.yaml", "env: {A: builder.yaml, B: builder.yaml, C: builder.yaml}\n")
    kitchen.recipe(more="env: {B: recipe, C: recipe}\n")
    builder("run", "chat", "--detach", "--env", "C=typed", "-e", "D=a=b c")
    expected = {"A": "builder.yaml", "B": "recipe", "C": "typed", "D": "a=b c"}
    assert expected.items() <= variables(inspect(endpoint, kitchen.name)).items()
    builder("restart", "chat", "--detach", "--env", "D=new", "--memory", "256m")
    again = inspect(endpoint, kitchen.name)
    assert {**expected, "D": "new"}.items() <= variables(again).items()
    assert again["HostConfig"]["Memory"] == 256 << 20


def test_a_secret_reaches_the_server_and_nothing_else(kitchen: Kitchen, builder: Builder, endpoint: Endpoint) -> None:
    projects.write(kitchen.project.root / "builder.yaml", f"env: {{OTHER_TOKEN: {HIDDEN}-1, OWN: }}\n")
    texts = []
    done = builder("run", "chat", "--detach", "--env", f"API_KEY={HIDDEN}-2", "--verbose", OWN=f"{HIDDEN}-3")
    texts += [done.stdout, done.stderr]
    details = inspect(endpoint, kitchen.name)
    wanted = {"OTHER_TOKEN": f"{HIDDEN}-1", "API_KEY": f"{HIDDEN}-2", "OWN": f"{HIDDEN}-3"}
    assert wanted.items() <= variables(details).items()
    details["Config"].pop("Env")
    texts.append(json.dumps(details))

    # Its value was not kept: without it nothing is stopped, and with it everything is as before.
    refused = builder("restart", "chat", "--detach", code=2, OWN="x")
    assert "API_KEY: not set in your environment" in refused.stderr
    assert inspect(endpoint, kitchen.name)["Id"] == details["Id"]
    builder("restart", "chat", "--detach", OWN="x", API_KEY=f"{HIDDEN}-4")
    assert variables(inspect(endpoint, kitchen.name))["API_KEY"] == f"{HIDDEN}-4"

    for kind in ("compose", "script"):
        done = builder("export", "chat", "--format", kind, "--env", f"API_KEY={HIDDEN}-5", "--env", "SHOWN=yes")
        assert "the value of API_KEY is not written" in done.stderr
        assert "SHOWN" in done.stdout
        assert "API_KEY" in done.stdout
        texts += [done.stdout, done.stderr]
    texts += [builder("status", "--json").stdout, kitchen.project.lock.read_text(encoding="utf-8")]
    assert not [text for text in texts if HIDDEN in text]


def test_a_published_port_leads_to_a_server_with_a_network_of_its_own(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    refused = builder("run", "chat", "--publish", "9000:8000", code=2)
    assert "the server listens on 127.0.0.1: only its own container can reach it" in refused.stderr

    file = kitchen.project.recipes / "chat.yaml"
    file.write_text(file.read_text().replace("--host 127.0.0.1", "--host 0.0.0.0"))
    port = processes.free_port()
    done = builder("run", "chat", "--publish", f"127.0.0.1:{port}:{kitchen.port}")
    assert f"http://127.0.0.1:{port}/v1\n" in done.stdout
    assert inspect(endpoint, kitchen.name)["HostConfig"]["NetworkMode"] == "bridge"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=120) as answer:
        assert answer.status == 200
    (service,) = json.loads(builder("status", "chat", "--json").stdout)["services"]
    assert (service["state"], service["generated_tokens_per_second"] is not None) == ("healthy", True)
    kitchen.recipe(file="other", name=f"{kitchen.name}-b", model="Org/Other", port=port)
    assert f"port {port} is already used by {kitchen.name} (image " in builder("run", "other", code=1).stderr


def test_several_nodes_publish_nothing(kitchen: Kitchen, builder: Builder) -> None:
    nodes = "nodes:\n  one: {engine: default, address: 127.0.0.1}\n  two: {engine: default, address: 127.0.0.2}\n"
    projects.write(kitchen.project.root / "builder.yaml", nodes)
    done = builder("run", "chat", "--node", "one", "--node", "two", "--publish", "9000:8000", code=2)
    assert "so it cannot publish ports" in done.stderr


def test_earlyoom_is_looked_for_before_anything_starts(kitchen: Kitchen, builder: Builder, endpoint: Endpoint) -> None:
    projects.write(kitchen.project.root / "builder.yaml", "earlyoom: true\n")
    done = builder("run", "chat", "--detach", code=7)
    assert f"{kitchen.repository}:2 has no earlyoom: nothing was started" in done.stderr
    assert containers.find_container(endpoint, kitchen.name) is None
    builder("run", "chat", "--detach", "--no-earlyoom")
    assert inspect(endpoint, kitchen.name)["Config"]["Cmd"][:2] == ["vllm", "serve"]


def test_exported_files_have_it_all(kitchen: Kitchen, builder: Builder, tmp_path: Path) -> None:
    import yaml

    kitchen.recipe(more="volumes: [~/templates:/templates:ro]\n")
    options = ["--env", "A=1", "--memory", "100g", "--earlyoom", "--volume", f"{tmp_path}:/m"]
    document = yaml.safe_load(builder("export", "chat", "--format", "compose", *options).stdout)
    (service,) = document["services"].values()
    assert {(mount["source"], mount["target"], mount.get("read_only", False)) for mount in service["volumes"]} >= {
        ("${HOME}/templates", "/templates", True),
        (str(tmp_path), "/m", False),
    }
    assert service["environment"]["A"] == "1"
    assert service["mem_limit"] == "100g"
    assert [word.replace("$$", "$") for word in service["command"][:3]] == list(container.earlyoom_beside(())[:3])
    script = builder("export", "chat", "--format", "script", *options).stdout
    assert '--volume "$HOME"/templates:/templates:ro' in script
    assert '[ -e "$HOME"/templates ] ||' in script
    assert "earlyoom -M 524288,102400" in script
    assert "--memory 100g" in script
    done = builder("export", "chat", "--format", "recipe")
    assert f"start yours with -v {kitchen.environ['HOME']}/templates:/templates:ro" in done.stderr
    assert (
        "takes no options for the command or the container"
        in builder("export", "chat", "--format", "recipe", *options, code=2).stderr
    )

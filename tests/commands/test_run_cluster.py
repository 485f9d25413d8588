"""One model served by two machines: two engines, and the exact containers that are made in each."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from builder.base.project import Project
from builder.definitions.cluster import port
from builder.definitions.container import LABEL
from builder.engine import client, containers, images
from builder.engine.client import Endpoint
from tests import projects, shared
from tests.commands import second_engine
from tests.commands.serving import MODEL, Kitchen
from tests.conftest import run_command

pytestmark = pytest.mark.engine

Builder = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def second(
    tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint, built: tuple[Project, str]
) -> Iterator[Endpoint]:
    """Another engine that has both numbers."""
    with second_engine.running(tmp_path_factory.mktemp("engine"), *shared.bridge(11)) as environ:
        second_engine.load(endpoint.host, environ, f"{built[1]}:1", f"{built[1]}:2")
        yield replace(endpoint, host=environ["DOCKER_HOST"])


@pytest.fixture
def cluster(kitchen: Kitchen, endpoint: Endpoint, second: Endpoint) -> Iterator[Kitchen]:
    """A project with two nodes."""
    nodes = {
        "one": {"engine": endpoint.host, "address": "127.0.0.1"},
        "two": {"engine": second.host, "address": "127.0.0.2", "models": str(kitchen.project.root / "models")},
    }
    projects.write(kitchen.project.root / "builder.yaml", json.dumps({"nodes": nodes}))
    yield kitchen
    for service in containers.labelled(second, LABEL):
        containers.stop_container(second, service.id, 0)


@pytest.fixture
def builder(kitchen: Kitchen) -> Builder:
    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return run_command(kitchen.project, *arguments, code=code, environ=kitchen.environ)

    return run


def without_guard(argv: list[str]) -> list[str]:
    """The command in the guard that ends it with those of the other nodes."""
    assert argv[:2] == ["python3", "-ISc"]
    assert argv[5] == str(port("29501"))
    return argv[7:]


def facts(endpoint: Endpoint, name: str) -> dict[str, Any]:
    details = client.request(endpoint, "GET", f"/containers/{name}/json")
    config, host = details["Config"], details["HostConfig"]
    return {
        "argv": without_guard(config["Cmd"]),
        "address": [entry for entry in config["Env"] if entry.startswith("VLLM_HOST_IP")],
        "network": host["NetworkMode"],
        "asked": config["Healthcheck"]["Test"] != ["NONE"],
        "rank": config["Labels"][f"{LABEL}.rank"],
        "nodes": config["Labels"][f"{LABEL}.nodes"],
        "models": next(m["Source"] for m in host["Mounts"] if m["Target"] == "/root/.cache/huggingface"),
    }


@pytest.mark.long
def test_a_mod_is_tried_on_every_node(cluster: Kitchen, builder: Builder, endpoint: Endpoint, second: Endpoint) -> None:
    projects.add_mod(cluster.project.root, "tried", 'echo tried > "$WORKSPACE_DIR/tried"\n', {})
    cluster.recipe("--tensor-parallel-size 2", more="cluster_only: true\n")
    assert "ready after " in builder("run", "chat", "--try-mod", "tried").stdout
    for engine in (endpoint, second):
        assert containers.execute(engine, cluster.name, ["cat", "/workspace/vllm/tried"], 120).output == "tried\n"
    builder("stop", "chat")
    projects.add_mod(cluster.project.root, "bad", "exit 3\n", {})
    assert "mod bad: run.sh ended with exit code 3" in builder("run", "chat", "--try-mod", "bad", code=6).stderr
    assert [containers.find_container(engine, cluster.name) for engine in (endpoint, second)] == [None, None]


@pytest.mark.long
def test_every_node_runs_the_command_with_its_place_in_it(
    cluster: Kitchen, builder: Builder, endpoint: Endpoint, second: Endpoint
) -> None:
    cluster.recipe("--tensor-parallel-size 2", more="cluster_only: true\n")
    done = builder("run", "chat")
    name = f"{cluster.name}@one,two"
    assert f"{name} serves from {cluster.repository}:2, ready after " in done.stdout

    serve = ["vllm", "serve", MODEL, "--port", str(cluster.port), "--host", "127.0.0.1", "--tensor-parallel-size", "2"]
    place = ["--nnodes", "2", "--node-rank", "{}", "--master-addr", "127.0.0.1", "--master-port", "29501"]
    home = cluster.environ["HOME"]
    assert facts(endpoint, cluster.name) == {
        "argv": [*serve, *(word.format(0) for word in place)],
        "address": ["VLLM_HOST_IP=127.0.0.1"],
        "network": "host",
        "asked": True,
        "rank": "0",
        "nodes": "one,two",
        "models": f"{home}/.cache/huggingface",
    }
    assert facts(second, cluster.name) == {
        "argv": [*serve, *(word.format(1) for word in place), "--headless"],
        "address": ["VLLM_HOST_IP=127.0.0.2"],
        "network": "host",
        "asked": False,
        "rank": "1",
        "nodes": "one,two",
        "models": str(cluster.project.root / "models"),
    }

    (service,) = json.loads(builder("status", MODEL, "--json").stdout)["services"]
    assert (service["state"], service["nodes"], service["requests_running"]) == ("healthy", ["one", "two"], 2)
    assert '"--headless"' in builder("logs", "chat", "--node", "two").stdout
    assert "Application startup complete" in builder("logs", "chat").stdout
    assert " already serves from " in builder("run", "chat").stdout

    builder("rollback", MODEL)
    assert f"serves from {cluster.repository}:1" in builder("restart", "chat").stdout
    serving = [containers.find_container(engine, cluster.name) for engine in (endpoint, second)]
    assert [service and service.image for service in serving] == [f"{cluster.repository}:1"] * 2

    containers.stop_container(second, cluster.name, 0)
    (service,) = json.loads(builder("status", MODEL, "--json").stdout)["services"]
    assert (service["state"], service["missing_nodes"]) == ("incomplete", ["two"])
    builder("stop", "chat")
    assert containers.find_container(endpoint, cluster.name) is None


def test_ray_where_it_is_asked_for(cluster: Kitchen, builder: Builder, endpoint: Endpoint, second: Endpoint) -> None:
    cluster.recipe("")
    builder("run", "chat", "--node", "two", "--node", "one", "--ray", "--detach")
    serve = ["vllm", "serve", MODEL, "--port", str(cluster.port), "--host", "127.0.0.1"]
    head = facts(second, cluster.name)
    assert head["argv"][:2] == ["bash", "-c"]
    assert head["argv"][-len(serve) - 2 :] == [*serve, "--distributed-executor-backend", "ray"]
    assert head["argv"][5:10] == ["ray", "start", "--block", "--head", "--port"]
    worker = facts(endpoint, cluster.name)
    assert worker["argv"][4:7] == ["ray", "start", "--block"]
    assert worker["argv"][-3:] == ["--address=127.0.0.2:29501", "--node-ip-address", "127.0.0.1"]
    assert (head["rank"], worker["rank"], worker["nodes"]) == ("0", "1", "two,one")


@pytest.mark.parametrize("why", ["moved", "missing"])
def test_every_node_has_the_same_content_or_nothing_is_started(
    cluster: Kitchen, builder: Builder, endpoint: Endpoint, second: Endpoint, why: str
) -> None:
    name = f"{cluster.repository}:2"
    images.tag_image(second, name, f"{cluster.repository}:kept")
    try:
        if why == "moved":
            images.tag_image(second, f"{cluster.repository}:1", name)
        else:
            images.remove_extra_tag(second, name)
        done = builder("run", "chat", "--node", "one", "--node", "two", code=7)
    finally:
        images.tag_image(second, f"{cluster.repository}:kept", name)
    said = "its tag was moved on node two" if why == "moved" else "is missing from node two"
    assert said in done.stderr
    assert "nothing was started" in done.stderr
    hint = " ".join(done.stderr.split())
    assert f"`builder copy {name} two` copies it there" in hint
    assert (f"on two, `docker tag {name} OTHER-NAME; docker image rm {name}` frees the name" in hint) == (
        why == "moved"
    )
    assert containers.find_container(endpoint, cluster.name) is None
    assert containers.find_container(second, cluster.name) is None


@pytest.mark.long
def test_a_crash_loop_of_any_node_ends_it(
    cluster: Kitchen, builder: Builder, endpoint: Endpoint, second: Endpoint
) -> None:
    # The one that answers takes its time: the other has none to wait for it.
    cluster.recipe("--slow-head 600 --crash-further")
    done = builder("run", "chat", "--node", "one", "--node", "two", code=1)
    assert f"{cluster.name} on node two ended " in done.stderr
    assert f"the whole log: .builder/serve-logs/{cluster.name}@two.log" in done.stderr
    assert containers.find_container(endpoint, cluster.name) is None
    assert containers.find_container(second, cluster.name) is None


def test_one_node_serves_alone(cluster: Kitchen, builder: Builder, endpoint: Endpoint, second: Endpoint) -> None:
    done = builder("run", "chat", "--node", "two")
    assert f"{cluster.name}@two serves from " in done.stdout
    assert containers.find_container(endpoint, cluster.name) is None
    found = containers.find_container(second, cluster.name)
    assert found is not None
    assert found.status == "running"
    assert builder("stop", "chat").stdout.startswith(f"{cluster.name}@two stopped after ")


def test_a_node_that_does_not_answer_is_named(cluster: Kitchen, builder: Builder) -> None:
    nodes = {"gone": {"engine": "unix:///nonexistent/docker.sock"}}
    projects.write(cluster.project.root / "builder.yaml", json.dumps({"nodes": nodes}))
    assert "no answer from node gone: no Docker engine answers at" in builder("status").stderr
    done = builder("stop", "chat", code=2)
    assert "`chat` is not being served; gone: no Docker engine answers" in done.stderr

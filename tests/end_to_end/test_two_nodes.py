"""One model that a real vLLM serves on the CPU by two containers, in two engines with a network each: tensor parallel
over Gloo, in place of NCCL over RoCE, which no test machine has."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.base import processes
from builder.base.project import Project
from builder.definitions.container import LABEL
from builder.engine import containers
from builder.engine.client import Endpoint
from builder.lock import lock_file
from builder.lock.model import ImageName
from tests import cpu_image, linked, projects, shared
from tests.commands import second_engine
from tests.conftest import remove_all, run_command
from tests.linked import Linked

pytestmark = [pytest.mark.engine, pytest.mark.image, pytest.mark.full, pytest.mark.timeout(2400)]

RECIPE = "recipes/qwen3-0.6b-cpu.yaml"
MODEL = "Qwen/Qwen3-0.6B"
REVISION = "0123456789abcdef0123456789abcdef01234567"
# What the tiny model and two cores take, in place of what the recipe says for the real one.
SMALL = ("--tp", "2", "--max-model-len", "1024", "--host", "127.0.0.1")
ENV = "\nenv:\n  HF_HUB_OFFLINE: 1\n  VLLM_CPU_OMP_THREADS_BIND: nobind\n"
Builder = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint) -> Iterator[tuple[Project, ImageName]]:
    """A project with the cpu image, and a recipe that several machines may serve."""
    repository = f"{shared.unique_name()}-cpu"
    project = cpu_image.project(tmp_path_factory.mktemp("cpu"), repository, RECIPE)
    file = project.root / RECIPE
    text = file.read_text(encoding="utf-8").replace("solo_only: true\n", "").replace("\nenv:\n", ENV)
    projects.write(file, text.replace("name: Qwen3-0.6B-cpu", f"name: {repository}-served"))
    cpu_image.builder(project, "build", RECIPE, "--no-prove")
    yield project, lock_file.read_lock(project.lock).models[MODEL].pairing.image
    remove_all(endpoint, repository)


@pytest.fixture(scope="module")
def link(
    tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint, cpu: tuple[Project, ImageName]
) -> Iterator[Linked]:
    """A machine beside this one that has the image."""
    with linked.linked(endpoint, tmp_path_factory.mktemp("link"), 3, 1) as made:
        node = made.machines[0].node
        second_engine.load(endpoint.host, {**node.environ, "DOCKER_HOST": node.host}, str(cpu[1]))
        yield made


@pytest.fixture(scope="module")
def environ(
    tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint, cpu: tuple[Project, ImageName], link: Linked
) -> dict[str, str]:
    """The user's variables: a cache with a tiny random model in place of the recipe's, which both engines see."""
    home = tmp_path_factory.mktemp("huggingface")
    model = home / f"hub/models--{MODEL.replace('/', '--')}"
    projects.write(model / "refs/main", REVISION)
    folder = model / "snapshots" / REVISION
    folder.mkdir(parents=True)
    mounts = {Path(__file__).parent: "/here", folder: "/model"}
    cpu_image.run_in(endpoint, str(cpu[1]), ["python3", "/here/tiny_model.py", "/model"], mounts)
    caches = tmp_path_factory.mktemp("caches")
    return {**os.environ, **link.environ, "HF_HOME": str(home), "XDG_CACHE_HOME": str(caches)}


@pytest.fixture
def builder(
    cpu: tuple[Project, ImageName], environ: dict[str, str], endpoint: Endpoint, link: Linked
) -> Iterator[Builder]:
    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return run_command(cpu[0], *arguments, code=code, environ=environ)

    yield run
    containers.remove_labelled(endpoint, f"{LABEL}={cpu[1].repository}-served")
    containers.remove_labelled(link.machines[0].endpoint, LABEL)


def configure(project: Project, endpoint: Endpoint, link: Linked, interface: str) -> None:
    two = link.machines[0]
    nodes = {
        "one": {"engine": endpoint.host, "address": link.gateway, "interface": link.bridge, "rdma": []},
        "two": {"engine": two.engine, "address": two.address, "interface": interface, "rdma": []},
    }
    projects.write(project.root / "builder.yaml", json.dumps({"nodes": nodes}))


def answer(port: int) -> str:
    """What the model goes on with: the same each time."""
    body = json.dumps({"model": "qwen3-0.6b", "prompt": "Is it raining?", "max_tokens": 6, "temperature": 0})
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body.encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as response:
        text: str = json.load(response)["choices"][0]["text"]
    return text


def status(builder: Builder) -> dict[str, Any]:
    (state,) = json.loads(builder("status", MODEL, "--json").stdout)["services"]
    return dict(state)


def test_two_nodes_answer_together_and_end_together(
    cpu: tuple[Project, ImageName], builder: Builder, endpoint: Endpoint, link: Linked
) -> None:
    project, image = cpu
    configure(project, endpoint, link, linked.INTERFACE)
    port = processes.free_port()
    small = (*SMALL, "--port", str(port))
    done = builder("run", MODEL, "--node", "one", "--node", "two", *small, "--", "--enforce-eager")
    assert f"{image.repository}-served@one,two serves from {image}, ready after " in done.stdout
    assert answer(port) == answer(port) != ""
    now = status(builder)
    assert (now["state"], now["nodes"], now["restarts"]) == ("healthy", ["one", "two"], 0)
    assert now["generated_tokens"] > 0
    assert "rank=1" in builder("logs", MODEL, "--node", "two").stdout
    assert "rank=0" in builder("logs", MODEL, "--node", "one").stdout

    name = f"vllm-{image.repository}-served"
    kill = ["sh", "-c", "kill -9 $(cat /proc/1/task/1/children)"]
    assert containers.execute(link.machines[0].endpoint, name, kill, 120).exit_code == 0
    end = time.monotonic() + 120
    while (service := containers.find_container(endpoint, name)) and not service.restarts and time.monotonic() < end:
        time.sleep(0.5)
    assert service is not None
    assert service.restarts == 1
    assert "the server on another node has ended" in builder("logs", MODEL, "--node", "one").stdout
    assert status(builder)["restarts"] == 2

    builder("stop", MODEL)
    for engine in (endpoint, link.machines[0].endpoint):
        assert containers.find_container(engine, name) is None


def test_a_wrong_interface_ends_both_with_the_lines_of_the_one_that_has_it(
    cpu: tuple[Project, ImageName], builder: Builder, endpoint: Endpoint, link: Linked
) -> None:
    project, image = cpu
    configure(project, endpoint, link, "enp1s0f1np2")
    small = (*SMALL, "--port", str(processes.free_port()))
    done = builder("run", MODEL, "--node", "one", "--node", "two", *small, "--", "--enforce-eager", code=1)
    name = f"{image.repository}-served"
    assert f"{name} on node two ended before it answered" in " ".join(done.stderr.split())
    assert "enp1s0f1np2" in (project.state / f"serve-logs/{name}@two.log").read_text()
    for engine in (endpoint, link.machines[0].endpoint):
        assert containers.find_container(engine, f"vllm-{name}") is None
    checked = builder("nodes", "check", "--node", "two", code=1)
    assert "there is no enp1s0f1np2" in checked.stdout

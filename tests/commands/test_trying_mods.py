"""Mods that are tried in the container of a server, without a build: the engine is real, vLLM a stand-in."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from builder.definitions.container import COMPILED
from builder.engine import client, containers
from builder.engine.client import Endpoint
from builder.lab.measure import measurement
from builder.serving import running
from tests import json_outputs, projects, workspaces
from tests.commands.serving import MODEL, Kitchen
from tests.conftest import command, run_command

pytestmark = pytest.mark.engine

Builder = Callable[..., subprocess.CompletedProcess[str]]
# The second mod changes what the first brought, in the folder that the first made.
FIRST = 'cp -r own "$WORKSPACE_DIR/own"\n./tool > "$WORKSPACE_DIR/own/tool"\n'
SECOND = 'sed -i s/one/two/ "$WORKSPACE_DIR/own/said"\n'
CHECKED = """\
description: changes what the first one brought
run: run.sh
after: [first]
env: {SAID: two}
check: [{file: own/said, contains: two}, {file: own/tool, contains: ran}]
"""


@pytest.fixture
def builder(kitchen: Kitchen) -> Builder:
    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return run_command(kitchen.project, *arguments, code=code, environ=kitchen.environ)

    return run


@pytest.fixture
def mods(kitchen: Kitchen) -> None:
    root = kitchen.project.root
    projects.add_mod(root, "first", FIRST, {"own/said": "one\n", "tool": "#!/bin/sh\necho ran\n"})
    (root / "mods/first/tool").chmod(0o755)
    projects.add_mod(root, "second", SECOND, {}, CHECKED)


def inspect(endpoint: Endpoint, name: str) -> dict[str, Any]:
    details: dict[str, Any] = client.request(endpoint, "GET", f"/containers/{name}/json")
    return details


@pytest.mark.usefixtures("mods")
def test_mods_are_applied_in_the_container_and_nothing_is_recorded(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    before = kitchen.project.lock.read_bytes()
    done = builder("run", "chat", "--try-mod", "mods/second", "--try-mod", "first")
    assert f"{kitchen.name} serves from {kitchen.repository}:2, ready after" in done.stdout
    said = " ".join(done.stderr.split())
    assert "`builder build recipes/chat.yaml --mod first --mod second`" in said
    assert "mod second can use the network here, but not in a build" in said

    def read(*argv: str) -> str:
        return containers.execute(endpoint, kitchen.name, ["sh", "-c", *argv], 120).output

    assert read("cat /workspace/vllm/own/* && echo $SAID && test ! -e /run/builder") == "two\nran\ntwo\n"
    (service,) = json_outputs.parsed("status", builder("status", "chat", "--json").stdout)["services"]
    assert (service["state"], service["tried_mods"]) == ("healthy", ["first", "second"])
    assert "first, second: only in this server; its results are not evidence" in " ".join(
        builder("status", "chat").stdout.split()
    )
    # Neither what it compiles nor that it answers belongs to the number.
    assert COMPILED not in inspect(endpoint, kitchen.name)["Config"]["Labels"]
    assert not kitchen.project.answered.exists()
    assert kitchen.project.lock.read_bytes() == before
    server = running.find_server(workspaces.workspace(kitchen.project, endpoint), "chat")
    assert measurement.find_measured_server(server).image is None

    # The engine starts it again with the mods in place; a restart applies them again.
    client.request(endpoint, "POST", f"/containers/{kitchen.name}/restart")
    assert "own/said" in read("ls own/said")
    assert "serves from" in builder("restart", "chat").stdout
    assert read("cat own/said") == "two\n"
    refused = builder("run", "chat", code=1).stderr
    assert "is already being served, with other options" in refused


@pytest.mark.usefixtures("mods")
@pytest.mark.parametrize(
    ("script", "yaml", "told"),
    [
        ("echo no such hunk >&2\nexit 3\n", "", "mod bad: run.sh ended with exit code 3"),
        pytest.param("true\n", "", "mod bad: the script succeeded, but changed nothing", marks=pytest.mark.long),
        pytest.param(
            "touch /new\n",
            "description: x\nrun: run.sh\ncheck: [{file: /x}]\n",
            "check of mod bad: /x does not exist",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_mod_that_fails_leaves_nothing_behind(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint, script: str, yaml: str, told: str
) -> None:
    projects.add_mod(kitchen.project.root, "bad", script, {}, yaml)
    error = builder("run", MODEL, "--try-mod", "first", "--try-mod", "bad", code=6).stderr
    assert told in error
    assert containers.find_container(endpoint, kitchen.name) is None


@pytest.mark.long
@pytest.mark.usefixtures("mods")
def test_a_server_whose_mods_were_never_applied_is_started_again(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    held = kitchen.project.root / "held/on"
    projects.write(held, "")
    kitchen.recipe(more='volumes: ["./held:/held:ro"]\n')
    script = "echo 1 > /workspace/begun\nwhile [ -e /held/on ]; do sleep 0.1; done\n"
    projects.add_mod(kitchen.project.root, "lasts", script, {})
    environ = {**os.environ, **kitchen.environ}
    words = ("run", "chat", "--try-mod", "lasts")
    killed = subprocess.Popen(command(kitchen.project, *words), env=environ, stderr=subprocess.DEVNULL)
    while not ((service := containers.find_container(endpoint, kitchen.name)) and service.is_up):
        time.sleep(0.1)
    containers.execute(endpoint, service.id, ["sh", "-c", "until [ -e /workspace/begun ]; do sleep 0.1; done"], 120)
    killed.kill()
    killed.wait()
    assert inspect(endpoint, kitchen.name)["State"]["Running"], "it waits for its mods"

    held.unlink()
    assert "serves from" in builder(*words).stdout
    assert inspect(endpoint, kitchen.name)["Id"] != service.id
    assert "already" in builder(*words).stdout


def test_what_cannot_be_tried_is_told_before_anything_starts(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    root = kitchen.project.root
    assert "no mod `none` in" in builder("run", "chat", "--try-mod", "none", code=2).stderr
    projects.add_mod(root, "newer", "touch /x\n", {}, 'description: x\nrun: run.sh\nrequires: {python: ">=99"}\n')
    assert "newer requires python >=99, but 3." in builder("run", "chat", "--try-mod", "newer", code=2).stderr
    projects.add_mod(root, "host", "sync; echo 3 > /proc/sys/vm/drop_caches\n", {})
    assert "mod host cannot be applied to an image" in builder("run", "chat", "--try-mod", "host", code=2).stderr
    assert containers.find_container(endpoint, kitchen.name) is None

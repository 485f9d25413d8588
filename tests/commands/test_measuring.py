"""``builder bench`` and ``builder probe`` around a server: one that runs is used, else one is started and stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from builder.engine import containers
from builder.engine.client import Endpoint
from tests import projects
from tests.commands.serving import Kitchen
from tests.conftest import command, run_command

pytestmark = pytest.mark.engine

Builder = Callable[..., subprocess.CompletedProcess[str]]
CHECK = """\
import json, os, urllib.request
listing = json.load(urllib.request.urlopen(os.environ["BUILDER_ADDRESS"] + "/models"))
assert listing["data"][0]["id"] == os.environ["BUILDER_MODEL"]
print(json.dumps({"models": len(listing["data"])}))
"""


@pytest.fixture
def builder(kitchen: Kitchen) -> Builder:
    return partial(run_command, kitchen.project, environ=kitchen.environ)


def write_probe(kitchen: Kitchen, name: str, script: str, **more: object) -> None:
    folder = kitchen.project.root / "probes" / name
    projects.write(folder / "check.py", script)
    projects.write(folder / "probe.yaml", json.dumps({"command": ["python3", "check.py"], **more}))


def evidence(kitchen: Kitchen) -> list[dict[str, Any]]:
    paths = sorted(kitchen.project.root.glob("evidence/**/*.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


@pytest.mark.long
def test_a_server_is_started_for_a_probe_and_stopped(kitchen: Kitchen, builder: Builder, endpoint: Endpoint) -> None:
    write_probe(kitchen, "models", CHECK, figures={"models": {"unit": "models", "better": "neither"}})
    done = builder("probe", "chat", "models")
    assert f"models of {kitchen.name} from {kitchen.repository}:2: passed" in done.stdout
    assert "4 runs, 0 failed" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines() if not line.startswith("kept in")) <= 80
    assert containers.find_container(endpoint, kitchen.name) is None
    (kept,) = evidence(kitchen)
    assert (kept["kind"], kept["name"], kept["verdict"]) == ("probe", "models", "pass")
    assert (kept["subject"]["image"], kept["subject"]["recipe"]) == (f"{kitchen.repository}:2", "recipes/chat.yaml")
    assert kept["subject"]["fingerprint"]
    assert kept["subject"]["machine"]["memory"] > 0
    assert kept["figures"][0]["values"] == [1, 1, 1, 1]

    # A server that asks for a key: the probe gets it, and nothing that is shown or kept has it.
    kitchen.recipe("--api-key k-of-the-stand-in")
    write_probe(kitchen, "models", "import os; raise SystemExit('wrong answer to ' + os.environ['BUILDER_API_KEY'])")
    done = builder("probe", "chat", "models", "--json", code=1)
    (printed,) = json.loads(done.stdout)["probes"]
    assert (printed["verdict"], printed["findings"][0]["text"]) == ("fail", "wrong answer to ***")
    kept_files = [path for part in ("evidence", ".builder") for path in (kitchen.project.root / part).rglob("*")]
    assert not [path for path in kept_files if path.is_file() and b"k-of-the-stand-in" in path.read_bytes()]
    assert "k-of-the-stand-in" not in done.stdout + done.stderr
    assert containers.find_container(endpoint, kitchen.name) is None
    first, second = evidence(kitchen)
    assert first["set"] != second["set"]


@pytest.mark.long
def test_a_server_that_runs_is_used_and_goes_on(kitchen: Kitchen, builder: Builder, endpoint: Endpoint) -> None:
    write_probe(kitchen, "models", CHECK)
    builder("run", "chat")
    before = containers.find_container(endpoint, kitchen.name)
    builder("probe", "chat", "models")
    after = containers.find_container(endpoint, kitchen.name)
    assert before is not None
    assert after is not None
    assert (after.id, after.started, after.is_up) == (before.id, before.started, True)

    refused = builder("bench", "chat", "--compare", "1", "2", code=1)
    assert "is running, but a comparison measures each number alone" in refused.stderr
    assert containers.find_container(endpoint, kitchen.name) is not None

    # The stand-in has no tokenizer, and its context is shorter than the profile.
    missing = builder("bench", "chat", code=1)
    assert "tokenizer.json of Org/Model-1B is missing here" in missing.stderr
    builder("stop", "chat")

    # The first of the two is not the one that is paired.
    compared = builder("bench", "chat", "--compare", "1", "2", code=1)
    assert f"round 1: {kitchen.repository}:1" in compared.stderr
    assert "tokenizer.json of Org/Model-1B is missing here" in compared.stderr
    assert containers.find_container(endpoint, kitchen.name) is None
    assert f"{kitchen.repository}:2" in builder("run", "chat").stdout
    builder("stop", "chat")


def test_a_probe_that_is_interrupted_leaves_no_server(kitchen: Kitchen, endpoint: Endpoint) -> None:
    write_probe(kitchen, "slow", "open('began', 'w').close(); import time; time.sleep(600)")
    process = subprocess.Popen(
        command(kitchen.project, "probe", "chat", "slow"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **kitchen.environ},
    )
    began, end = kitchen.project.root / "probes/slow/began", time.monotonic() + 120
    while not began.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, messages = process.communicate(timeout=120)
    assert process.returncode == 130, messages
    assert containers.find_container(endpoint, kitchen.name) is None
    assert evidence(kitchen) == []


@pytest.mark.long
def test_a_server_that_is_stopped_meanwhile_has_not_failed(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    name = kitchen.name
    stops = (
        f"import subprocess, sys; subprocess.run({command(kitchen.project, 'stop', name)!r}, check=True)\nsys.exit(1)"
    )
    write_probe(kitchen, "stops", f"import os; os.environ.update({endpoint_variables()!r})\n{stops}")
    builder("run", "chat")
    told = builder("probe", "chat", "stops", code=1)
    assert "during the measurement: no result was kept" in told.stderr
    assert containers.find_container(endpoint, name) is None
    assert evidence(kitchen) == []


def endpoint_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("DOCKER_")}


def test_what_there_is_not_is_told_before_anything_starts(kitchen: Kitchen, builder: Builder) -> None:
    assert "no probe is called `tool-long`" in builder("probe", "chat", "tool-long", code=2).stderr
    assert "profiles: quick, community" in builder("bench", "chat", "--profile", "fast", code=2).stderr
    assert "has no number 9" in builder("bench", "chat", "--compare", "1", "9", code=2).stderr
    projects.write(kitchen.project.root / "builder.yaml", "bench: {mine: {pp: 0, runs: many}}\n")
    told = builder("bench", "chat", "--profile", "mine", code=2).stderr
    assert "bench.mine.runs" in told
    assert "bench.mine.pp" in told

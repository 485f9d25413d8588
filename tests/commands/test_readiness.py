"""The wait for a server, with containers that no recipe makes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from builder.base.errors import ConflictError, ServeFailedError
from builder.definitions import recipe
from builder.definitions.container import LABEL
from builder.engine import containers
from builder.engine.client import Endpoint
from builder.lock import lock_file
from builder.numbers.workspace import Workspace
from builder.serving import readiness
from builder.serving.running import RunningServer, ServerMember
from builder.serving.selection import for_recipe
from builder.serving.server_log import Phase
from builder.serving.starting import StartedServer
from tests.commands.serving import Kitchen
from tests.conftest import BASE
from tests.processes import until

pytestmark = pytest.mark.engine


def started(endpoint: Endpoint, kitchen: Kitchen, script: str, **more: Any) -> StartedServer:
    body = {"Image": BASE, "Cmd": ["sh", "-c", script], "Labels": {LABEL: kitchen.name}, **more}
    made = containers.create(endpoint, kitchen.name, body)
    containers.start_service(endpoint, made.id)
    end = time.monotonic() + 120
    while more.get("Healthcheck", {}).get("Retries") and made.health != "unhealthy" and time.monotonic() < end:
        made = containers.find_container(endpoint, made.id) or made
    read = recipe.load_recipe(kitchen.project, kitchen.project.recipes / "chat.yaml")
    found = for_recipe(lock_file.read_lock(kitchen.project.lock), read)
    return StartedServer(RunningServer((ServerMember(endpoint, made),)), found, was_running=True)


def workspace(endpoint: Endpoint, kitchen: Kitchen, said: list[object] | None = None) -> Workspace:
    return Workspace(kitchen.project, endpoint, kitchen.environ, said.append if said is not None else lambda _: None)


def test_without_a_health_check_the_log_says_when_it_answers(endpoint: Endpoint, kitchen: Kitchen) -> None:
    said: list[object] = []
    script = "echo Starting to load model; echo Application startup complete; sleep 600"
    readiness.wait_until_ready(workspace(endpoint, kitchen, said), started(endpoint, kitchen, script))
    assert said == [Phase("loading weights"), Phase("ready")]


def test_what_is_up_and_does_not_answer_is_not_waited_for(endpoint: Endpoint, kitchen: Kitchen) -> None:
    check = {"Test": ["CMD", "false"], "Interval": 10**8, "Retries": 1}
    sick = started(endpoint, kitchen, "sleep 600", Healthcheck=check)
    with pytest.raises(ConflictError, match=f"{kitchen.name} is running but does not answer"):
        readiness.wait_until_ready(workspace(endpoint, kitchen), sick)
    assert containers.find_container(endpoint, kitchen.name) is not None


def test_what_is_stopped_from_outside_is_not_waited_for(endpoint: Endpoint, kitchen: Kitchen) -> None:
    ends = started(endpoint, kitchen, "true")
    with pytest.raises(ConflictError, match="another command or program stopped .* while it was starting"):
        readiness.wait_until_ready(workspace(endpoint, kitchen), ends)


def test_what_the_kernel_killed_was_not_stopped_from_outside(endpoint: Endpoint, kitchen: Kitchen) -> None:
    """As a candidate for which the memory does not suffice: it ends with the exit code of `docker kill`."""
    limits = {"Memory": 32 << 20, "MemorySwap": 32 << 20}
    ends = started(endpoint, kitchen, "exec tail /dev/zero", HostConfig=limits)
    with pytest.raises(ServeFailedError, match="ended before it answered: killed by the kernel: out of memory"):
        readiness.wait_until_ready(workspace(endpoint, kitchen), ends)


def test_what_ends_and_is_not_started_again_has_failed(endpoint: Endpoint, kitchen: Kitchen) -> None:
    """As a candidate beside the server of its model, whose own server and image it says nothing about."""
    said: list[object] = []
    ends = started(endpoint, kitchen, "echo 'ValueError: no such parser' >&2; exit 3")
    with pytest.raises(ServeFailedError, match="ended before it answered: ValueError: no such parser$") as caught:
        readiness.wait_until_ready(workspace(endpoint, kitchen, said), ends)
    assert (said, caught.value.hint) == ([], "")
    assert containers.find_container(endpoint, kitchen.name) is None


def test_a_health_check_that_is_made_seldom_is_not_waited_for(endpoint: Endpoint, kitchen: Kitchen) -> None:
    """As on engines before 25, which know no other interval while a container starts."""
    port = str(kitchen.port)
    served = started(
        endpoint,
        kitchen,
        f"sleep 1; exec vllm serve x --port {port}",
        Image=f"{kitchen.repository}:2",
        Labels={LABEL: kitchen.name, f"{LABEL}.port": port, f"{LABEL}.host": "127.0.0.1"},
        Healthcheck={"Test": ["CMD", "true"], "Interval": 600 * 10**9},
    )
    assert readiness.wait_until_ready(workspace(endpoint, kitchen), served) < 300
    now = containers.find_container(endpoint, kitchen.name)
    assert now is not None
    assert now.health == "starting"


def test_a_candidate_that_never_gets_ready_is_ended_at_its_limit(endpoint: Endpoint, kitchen: Kitchen) -> None:
    said: list[object] = []
    waits = started(endpoint, kitchen, "echo Starting to load model; sleep 600")
    until(lambda: containers.container_log(endpoint, kitchen.name), "it logs")
    with pytest.raises(ServeFailedError, match="did not answer within 2.0 s.*: loading weights") as caught:
        readiness.wait_until_ready(workspace(endpoint, kitchen, said), waits, limit=2)
    assert f"waiting for {kitchen.name} for at most 2.0 s" in [str(getattr(each, "text", "")) for each in said]
    assert "Starting to load model" in (kitchen.project.root / caught.value.log).read_text()
    assert containers.find_container(endpoint, kitchen.name) is None

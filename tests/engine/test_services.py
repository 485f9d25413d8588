"""Long-lived containers: found, started, followed, stopped."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from builder.base.errors import ConflictError, EngineError, ImageStateError
from builder.engine import containers
from builder.engine.client import Endpoint, EngineHTTPError
from builder.engine.containers import Service
from tests import processes
from tests.conftest import BASE

pytestmark = pytest.mark.engine


def made(endpoint: Endpoint, name: str, script: str, *, restart: str = "no", **more: Any) -> Service:
    body = {
        "Image": BASE,
        "Cmd": ["sh", "-c", script],
        "Labels": {name: "yes"},
        "HostConfig": {"Init": True, "RestartPolicy": {"Name": restart}},
        **more,
    }
    return containers.create(endpoint, name, body)


def ended(endpoint: Endpoint, service: Service) -> Service:
    def found() -> Service:
        current = containers.find_container(endpoint, service.id)
        assert current is not None
        return current

    processes.until(lambda: found().status == "exited", "the container ended")
    return found()


def test_from_its_making_to_its_end(endpoint: Endpoint, repository: str) -> None:
    service = made(endpoint, repository, "echo begun; sleep 600")
    assert (service.name, service.image, service.status, service.restarts) == (repository, BASE, "created", 0)
    assert service.labels[repository] == "yes"
    assert not service.is_up
    containers.start_service(endpoint, service.id)
    (current,) = containers.labelled(endpoint, repository)
    assert (current.id, current.status, current.health, current.is_up) == (service.id, "running", "", True)
    assert current.started > "2026"
    gone = containers.stop_container(endpoint, service.id, 30)
    assert gone is not None
    assert (gone.status, gone.exit_code) == ("exited", 143)
    assert containers.find_container(endpoint, repository) is None
    assert containers.stop_container(endpoint, service.id, 1) is None


def test_the_beginning_of_an_id_is_no_name(endpoint: Endpoint, repository: str) -> None:
    service = made(endpoint, repository, "true")
    assert containers.find_container(endpoint, service.id) == containers.find_container(endpoint, repository) == service
    assert containers.find_container(endpoint, service.id[:12]) is None


def test_what_does_not_listen_is_killed(endpoint: Endpoint, repository: str) -> None:
    service = made(endpoint, repository, "trap '' TERM; echo deaf; while :; do sleep 0.1; done")
    containers.start_service(endpoint, service.id)
    assert next(containers.follow_log(endpoint, service.id)).text == "deaf"
    gone = containers.stop_container(endpoint, service.id, 0)
    assert gone is not None
    assert gone.exit_code == 137


def test_restarts_are_the_engines(endpoint: Endpoint, repository: str) -> None:
    service = made(endpoint, repository, "echo again; exit 3", restart="on-failure")
    containers.start_service(endpoint, service.id)
    lines = containers.follow_log(endpoint, service.id)
    assert [next(lines).text for _ in range(3)] == ["again"] * 3
    now = containers.find_container(endpoint, service.id)
    assert now is not None
    assert now.restarts >= 2
    assert now.is_up


def test_the_log_can_be_had_from_any_of_its_lines_on(endpoint: Endpoint, repository: str) -> None:
    service = made(endpoint, repository, "for i in 1 2 3 4 5; do echo zeile $i; done; printf 'no end'")
    containers.start_service(endpoint, service.id)
    ended(endpoint, service)
    lines = containers.container_log(endpoint, service.id)
    assert [line.text for line in lines] == [*(f"zeile {number}" for number in range(1, 6)), "no end"]
    assert [line.text for line in containers.container_log(endpoint, service.id, tail=2)] == ["zeile 5", "no end"]
    for number, line in enumerate(lines):
        assert containers.container_log(endpoint, service.id, after=line.written) == lines[number + 1 :]
    assert tuple(containers.follow_log(endpoint, service.id)) == lines
    assert containers.container_log(endpoint, service.id, tail=0) == ()


def test_a_name_is_given_once(endpoint: Endpoint, repository: str) -> None:
    made(endpoint, repository, "true")
    with pytest.raises(ConflictError, match=f"has just created a container named {repository}"):
        made(endpoint, repository, "true")


def test_what_cannot_be(endpoint: Endpoint, repository: str) -> None:
    with pytest.raises(ImageStateError, match=f"the engine has no image {repository}:9"):
        made(endpoint, repository, "true", Image=f"{repository}:9")
    missing = made(endpoint, repository, "", Cmd=["nonesuch"], HostConfig={})
    with pytest.raises(EngineHTTPError, match="nonesuch"):
        containers.start_service(endpoint, missing.id)
    with pytest.raises(EngineHTTPError, match="No such container"):
        tuple(containers.follow_log(endpoint, f"{repository}-x"))
    with pytest.raises(EngineError, match="no Docker engine answers"):
        containers.container_log(replace(endpoint, host="unix:///nonexistent/docker.sock"), missing.id)


@pytest.fixture(params=["tcp", "ssh"])
def far(request: pytest.FixtureRequest, endpoint: Endpoint) -> Iterator[Endpoint]:
    """The engine over another connection."""
    yield replace(endpoint, host=request.getfixturevalue(request.param))


def test_a_log_is_followed_from_afar(endpoint: Endpoint, far: Endpoint, repository: str) -> None:
    service = made(endpoint, repository, "echo one; sleep 1; echo two; sleep 600")
    containers.start_service(far, service.id)
    lines = containers.follow_log(far, service.id)
    assert [next(lines).text, next(lines).text] == ["one", "two"]
    assert isinstance(lines, Generator)
    lines.close()


def test_a_command_in_it_that_takes_too_long_does_not_end_it(endpoint: Endpoint, repository: str) -> None:
    service = made(endpoint, repository, "sleep 600")
    containers.start_service(endpoint, service.id)
    with pytest.raises(EngineError, match="has not answered for 1 seconds"):
        containers.execute(endpoint, service.id, ["sleep", "600"], 1)
    current = containers.find_container(endpoint, service.id)
    assert current is not None
    assert current.status == "running"

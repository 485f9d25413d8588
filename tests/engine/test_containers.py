"""Short-lived containers, in which the checks of an image run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builder.base.errors import BuildFailedError, ImageStateError
from builder.engine import client, containers
from builder.engine.client import Endpoint
from tests import processes
from tests.engine.conftest import Build

pytestmark = pytest.mark.engine


@pytest.fixture
def image(repository: str, build: Build) -> str:
    """An image whose entrypoint would end at once."""
    return build(f"{repository}:1", 'FROM debian:bookworm-slim\nENTRYPOINT ["false"]\nCMD ["x"]\nWORKDIR /tmp\n').id


def left(endpoint: Endpoint, label: str) -> list[str]:
    return [container["Id"] for container in containers.container_listing(endpoint, label)]


def test_commands_run_and_nothing_is_left(endpoint: Endpoint, repository: str, image: str) -> None:
    with containers.running(endpoint, image, labels={repository: "yes"}, workdir="/usr") as container:
        assert left(endpoint, f"{repository}=yes") == [container.id]
        assert container.run(["pwd"], timeout=120) == containers.ExecResult(0, "/usr\n")
        result = container.run(["sh", "-c", 'echo "$X"; echo grün >&2; exit 3'], timeout=120, env={"X": "a b\nc"})
        assert result.exit_code == 3
        assert "a b\nc\n" in result.output
        assert "grün\n" in result.output
        assert container.run(["nonesuch"], timeout=120).exit_code in {126, 127}
        long = container.run(["seq", "200000"], timeout=120).output
        assert long.splitlines()[-1] == "200000"
        assert len(long.splitlines()) == 200_000
    assert left(endpoint, repository) == []


def test_no_network(endpoint: Endpoint, repository: str, image: str) -> None:
    with containers.running(endpoint, image, labels={repository: ""}) as container:
        assert container.run(["ls", "/sys/class/net"], timeout=120).output.split() == ["lo"]


def test_the_working_directory_is_the_images(endpoint: Endpoint, repository: str, image: str) -> None:
    with containers.running(endpoint, image, labels={repository: ""}) as container:
        assert container.run(["pwd"], timeout=120).output == "/tmp\n"


@pytest.mark.long
def test_the_time_limit_holds(endpoint: Endpoint, repository: str, image: str) -> None:
    began = time.monotonic()
    for seconds in processes.GROWING:
        with (
            pytest.raises(BuildFailedError, match=f"did not end within {seconds} seconds and was stopped") as caught,
            containers.running(endpoint, image, labels={repository: ""}) as container,
        ):
            container.run(["sh", "-c", "echo begun; sleep 600"], timeout=seconds)
        if "begun" in str(caught.value):
            break
    assert str(caught.value).endswith("was stopped\nbegun")
    assert caught.value.exit_code == 6
    assert time.monotonic() - began < 400
    assert left(endpoint, repository) == []


def test_a_command_that_floods_is_stopped_in_time(endpoint: Endpoint, repository: str, image: str) -> None:
    with pytest.raises(BuildFailedError), containers.running(endpoint, image, labels={repository: ""}) as container:
        container.run(["sh", "-c", "while :; do echo x; sleep 0.01; done"], timeout=1)


@pytest.mark.long
def test_what_an_image_of_a_stranger_may_take_is_limited(
    endpoint: Endpoint, repository: str, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of memory, processes and output; whatever is beyond ends in the container, and this process holds none of it."""
    with containers.running(endpoint, image, labels={repository: ""}, memory=64 << 20) as container:
        eats = "x=$(head -c 300000000 /dev/zero | tr '\\0' a); echo done"
        killed = container.run(["sh", "-c", eats], timeout=120)
        assert (killed.exit_code != 0, "done" in killed.output) == (True, False)
        limits = client.request(endpoint, "GET", f"/containers/{container.id}/json")["HostConfig"]
        assert (limits["Memory"], limits["MemorySwap"], limits["PidsLimit"]) == (64 << 20, 64 << 20, 4096)
    monkeypatch.setattr(containers, "_MOST_PROCESSES", 50)
    with containers.running(endpoint, image, labels={repository: ""}) as container:
        forks = "for i in $(seq 200); do sleep 30 & done; echo done"
        assert "done" not in container.run(["sh", "-c", forks], timeout=120).output
    monkeypatch.setattr(containers, "_LARGEST_OUTPUT", 1 << 20)
    with (
        pytest.raises(BuildFailedError, match="wrote more than 1 MiB and was stopped"),
        containers.running(endpoint, image, labels={repository: ""}) as container,
    ):
        container.run(["yes"], timeout=120)
    assert left(endpoint, repository) == []


def test_an_error_inside_the_block_removes_it(endpoint: Endpoint, repository: str, image: str) -> None:
    with pytest.raises(ZeroDivisionError), containers.running(endpoint, image, labels={repository: ""}):
        _ = 1 / 0
    assert left(endpoint, repository) == []


def test_a_missing_image(endpoint: Endpoint, repository: str) -> None:
    with pytest.raises(ImageStateError), containers.running(endpoint, f"{repository}:9", labels={}):
        pass


def test_leftovers_are_found_by_label(endpoint: Endpoint, repository: str, image: str) -> None:
    body = {"Image": image, "Entrypoint": ["sleep", "600"], "Labels": {repository: "a"}}
    first = client.request(endpoint, "POST", "/containers/create", body=body)["Id"]
    client.request(endpoint, "POST", f"/containers/{first}/start")
    second = client.request(endpoint, "POST", "/containers/create", body={**body, "Labels": {repository: "b"}})["Id"]
    assert set(left(endpoint, repository)) == {first, second}
    assert containers.remove_labelled(endpoint, f"{repository}=a") == 1
    assert left(endpoint, repository) == [second]
    assert containers.remove_labelled(endpoint, repository) == 1
    assert containers.remove_labelled(endpoint, repository) == 0


CHILD = """\
import os
import sys
from builder.engine import containers
from builder.engine import client
with containers.running(client.find_endpoint(os.environ), sys.argv[1], labels={sys.argv[2]: ""}) as container:
    print(container.id, flush=True)
    container.run(["sleep", "600"], timeout=600)
"""


@pytest.mark.parametrize(("number", "remaining"), [(signal.SIGINT, 0), (signal.SIGKILL, 1)])
def test_ending_by_signal(
    endpoint: Endpoint, repository: str, image: str, number: signal.Signals, remaining: int
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, image, repository],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=Path(__file__).parents[2],
    )
    with child:
        assert child.stdout
        assert child.stdout.readline().strip() in left(endpoint, repository)
        child.send_signal(number)
        child.wait(timeout=120)
    assert len(left(endpoint, repository)) == remaining
    assert containers.remove_labelled(endpoint, repository) == remaining


def test_over_tcp(endpoint: Endpoint, repository: str, image: str, tcp: str) -> None:
    from dataclasses import replace

    with containers.running(replace(endpoint, host=tcp), image, labels={repository: ""}) as container:
        assert container.run(["sh", "-c", "echo out; exit 4"], timeout=120) == containers.ExecResult(4, "out\n")
        with pytest.raises(BuildFailedError):
            container.run(["sleep", "600"], timeout=1)

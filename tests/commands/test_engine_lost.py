"""The engine itself is killed in the middle of a build: a second engine, so that nobody else's is disturbed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.engine.client import Endpoint
from builder.lock import lock_file
from tests import projects, shared
from tests.commands import second_engine
from tests.commands.second_engine import engine
from tests.commands.test_reliability import SLOW, wait_for_log
from tests.conftest import BASE, command

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.engine


@pytest.fixture
def second(tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint) -> Iterator[dict[str, str]]:
    """The environment of a second engine that has the base image; it is gone, with its folders, when the test ends."""
    with second_engine.running(tmp_path_factory.mktemp("engine"), *shared.bridge(0)) as environ:
        second_engine.load(endpoint.host, environ, BASE)
        yield environ


def build(project: Project, environ: dict[str, str]) -> subprocess.Popen[str]:
    argv = command(project, "build", "chat")
    return subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_engine_that_stops_in_mid_build_leaves_everything_as_it_was(
    tmp_path: Path, second: dict[str, str], number: signal.Signals
) -> None:
    project = projects.make(tmp_path / "project")
    first = build(project, second)
    assert first.wait(timeout=300) == 0, first.communicate()
    before = project.lock.read_bytes()

    projects.write(project.root / "mods/template/run.sh", SLOW)
    process = build(project, second)
    wait_for_log(project, "slow step has begun")
    os.kill(int(Path(second["BUILDER_ENGINE_RUN"], "dockerd.pid").read_text()), number)
    _, output = process.communicate(timeout=300)
    assert process.returncode in {5, 6}, output
    assert output.count("error:") == 1
    assert "Traceback" not in output
    assert project.lock.read_bytes() == before

    engine(second, "up")
    projects.write(project.root / "mods/template/run.sh", "touch /done\n")
    again = build(project, second)
    assert again.wait(timeout=300) == 0, again.communicate()
    record = lock_file.read_lock(project.lock).images["small"]
    assert (sorted(record.numbers), record.current) == ([1, 2], 2)
    assert not list((project.state / "work").iterdir())

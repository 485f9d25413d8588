"""A forked ``builder`` behaves like a started ``builder``."""

from __future__ import annotations

import os
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests import program, projects

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("list",), ("list", "--json"), ("show", "nothing"), ("nonsense",), ("mods", "check"), ("prune",)],
)
def test_it_says_and_returns_the_same(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "dockerfiles").mkdir()
    projects.add_recipe(tmp_path, "chat", "vllm-node", "Org/Model", [])
    environ = {
        **os.environ,
        "DOCKER_HOST": "unix:///nowhere",
        "COLUMNS": "60",
        "PYTHONPATH": str(projects.REPOSITORY_ROOT),
    }
    started = subprocess.run([*program.PYTHON, *arguments], capture_output=True, text=True, cwd=tmp_path, env=environ)
    forked = program.run([*program.PYTHON, *arguments], cwd=tmp_path, env=environ)
    assert (forked.returncode, forked.stdout, forked.stderr) == (started.returncode, started.stdout, started.stderr)


@pytest.mark.slow
def test_who_takes_too_long_is_ended(tmp_path: Path) -> None:
    """This command waits for an engine: on a busy machine, a short command could end before the limit is checked."""
    (tmp_path / "dockerfiles").mkdir()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "docker.sock"))
        silent.listen()
        environ = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/docker.sock"}
        with pytest.raises(subprocess.TimeoutExpired):
            program.run([*program.PYTHON, "doctor"], env=environ, cwd=tmp_path, timeout=0.5)


@pytest.mark.slow
def test_several_run_at_once() -> None:
    with ThreadPoolExecutor(4) as pool:
        codes = list(
            pool.map(lambda word: program.run([*program.PYTHON, word]).returncode, ["--version", "nonsense"] * 4)
        )
    assert codes == [0, 2] * 4

"""The error of each command where images.lock is gone, though builds/ has images."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests import projects
from tests.cli.test_main import run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def test_a_lost_lock_is_not_taken_for_a_project_without_images(tmp_path: Path) -> None:
    projects.make(tmp_path)
    projects.write(tmp_path / "builds/small/1/bake.json", "{}")
    for command in ("list", "doctor"):
        assert "rebuild it with `builder lock --recover`" in " ".join(run(command, cwd=tmp_path).stdout.split())
    for_programs = run("list", "--json", cwd=tmp_path)
    assert json.loads(for_programs.stdout)["images"] == []
    assert "images.lock is lost" in for_programs.stderr


NEEDS_THE_LOCK = """\
build small
build chat --dry-run
lock
lock --check
lock --merge
rebuild small:1
run chat
rollback small
pair Org/Model-1B small:1
mark small:1 good
promote small:1
keep small:1
release small:1
push small:1
pull small:1
copy small:1 node
export chat --format compose
export-image small:1 file.tar
show small:1
diff small:1 small:2
list chat
prune
download chat
nodes
mods list
mods check
recipes list
recipes show chat
"""


@pytest.mark.parametrize("command", NEEDS_THE_LOCK.splitlines())
def test_nothing_is_decided_by_a_lost_lock(tmp_path: Path, command: str) -> None:
    project = projects.make(tmp_path)
    projects.write(tmp_path / "builder.yaml", "nodes: {node: {engine: tcp://127.0.0.1:9}}\n")
    projects.write(tmp_path / "builds/small/1/bake.json", "{}")
    done = run(*command.split(), cwd=tmp_path)
    message = " ".join(done.stderr.split())
    assert (done.returncode, done.stdout) == (4, ""), message
    assert message.startswith("error: images.lock is lost, but builds/ has images what to do: ")
    assert "`git checkout HEAD -- images.lock`, or rebuild it with `builder lock --recover`" in message
    assert not project.lock.exists()

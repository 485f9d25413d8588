"""``builder mods add`` and its kin as a user types them: what is shown and asked before anything is replaced."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.project import Project
from tests import projects
from tests.commands import git_upstream
from tests.conftest import command

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow


class Typed:
    """A project, and a repository with a mod and a recipe that a git daemon serves."""

    def __init__(self, root: Path, upstream: git_upstream.Upstream) -> None:
        self.project = Project(root)
        self.upstream = upstream
        self.url = upstream.url

    def run(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            command(self.project, *arguments), capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def answer(self, answer: str, *arguments: str) -> str:
        """Runs a command in a terminal, and types ``answer`` at its question."""
        ours, theirs = pty.openpty()
        os.write(ours, f"{answer}\n".encode())
        shown = b""
        with subprocess.Popen(command(self.project, *arguments), stdin=theirs, stdout=theirs, stderr=theirs):
            os.close(theirs)
            while True:
                try:
                    shown += os.read(ours, 4096)
                except OSError:
                    break
        os.close(ours)
        return shown.decode()

    def template(self) -> str:
        return (self.project.mods / "house/house.jinja").read_text()


@pytest.fixture
def typed(tmp_path: Path) -> Iterator[Typed]:
    with git_upstream.serving(tmp_path) as upstream:
        (tmp_path / "project/dockerfiles").mkdir(parents=True)
        projects.add_mod(upstream.work, "house", "cp house.jinja $WORKSPACE_DIR\n", {"house.jinja": "one\n"})
        projects.add_recipe(upstream.work, "chat", "vllm-node", "Org/Model", ["mods/house"])
        upstream.commit("Start")
        yield Typed(tmp_path / "project", upstream)


def test_what_replaces_something_is_shown_and_asked_for(typed: Typed) -> None:
    first = typed.upstream.git("rev-parse", "HEAD")[:12]
    output = typed.run("mods", "add", f"{typed.url}//mods/house@main")
    assert f"mods/house: copied, commit {first}" in output
    assert f"mods/house: unchanged in commit {first}" in typed.run("mods", "update")
    projects.write(typed.upstream.work / "mods/house/house.jinja", "two\n")
    typed.upstream.commit("Another")
    output = typed.run("mods", "update", "house", code=1)
    assert f"mods/house: {first} → " in output
    assert "house.jinja: changed\n  @@ -1 +1 @@\n  -one\n  +two\n" in output
    assert "nothing was changed; --yes replaces without asking" in output
    assert "nothing was changed" in typed.answer("n", "mods", "update", "house")
    assert typed.template() == "one\n"
    assert "mods/house: replaced by commit" in typed.answer("y", "mods", "update", "house")
    assert typed.template() == "two\n"


def test_edits_take_more_than_yes(typed: Typed) -> None:
    typed.run("mods", "add", f"{typed.url}//mods/house")
    projects.write(typed.project.mods / "house/house.jinja", "mine\n")
    listed = typed.run("mods", "list")
    assert f"  from       {typed.url}//mods/house, commit " in listed
    assert "  edited     since it was copied: house.jinja" in listed
    (document,) = json.loads(typed.run("mods", "list", "--json"))["mods"]
    assert (document["edited"], document["source"]["path"]) == (["house.jinja"], "mods/house")
    output = typed.run("mods", "update", "--yes", code=1)
    assert "edited here since it was copied, and lost: house.jinja" in output
    assert "`--force` replaces it all the same" in output
    assert typed.template() == "mine\n"
    typed.run("mods", "update", "--yes", "--force")
    assert typed.template() == "one\n"


def test_a_recipe_asks_for_its_mods(typed: Typed) -> None:
    address = f"{typed.url}//recipes/chat.yaml"
    assert "the project lacks mods that are named: house; --with-mods" in typed.run("recipes", "add", address)
    assert not (typed.project.mods / "house").exists()
    assert "mods/house: copied, commit" in typed.answer("y", "recipes", "add", address)
    assert typed.template() == "one\n"
    assert "recipes/chat: unchanged in commit" in typed.run("recipes", "update", "chat")


def test_a_mod_that_cannot_be_baked_says_so_at_once(typed: Typed) -> None:
    projects.add_mod(typed.upstream.work, "loop", "nohup sh -c 'while sleep 9; do date; done' &\n", {})
    typed.upstream.commit("Another")
    output = typed.run("mods", "add", f"{typed.url}//mods/loop")
    assert "note: mod loop cannot be baked: run.sh starts a process that is to outlive it" in output


def test_what_no_git_should_see_never_reaches_it(typed: Typed, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for address in (f"ext::sh -c touch% {mark}", f"--upload-pack=touch {mark}//x", f"fd::7,8/{mark}//x"):
        assert "is no address of a repository" in typed.run("mods", "add", "--", address, code=2)
    assert not mark.exists()

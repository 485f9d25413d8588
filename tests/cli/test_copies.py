"""``builder mods add`` and its kin as a user types them: what is shown and asked before anything is replaced."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.moving import shipped
from builder.moving.shipped import InitRecord
from tests import projects
from tests.commands import git_upstream
from tests.conftest import command
from tests.workspaces import NO_ENGINE

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

    def answer(self, answers: str, *arguments: str) -> str:
        """Runs a command in a terminal, and types each of ``answers`` at a question of its own."""
        ours, theirs = pty.openpty()
        os.write(ours, "".join(f"{answer}\n" for answer in answers).encode())
        shown = b""
        argv, environ = command(self.project, *arguments), {**os.environ, "DOCKER_HOST": NO_ENGINE.host}
        with subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=environ):
            os.close(theirs)
            while True:
                try:
                    shown += os.read(ours, 4096)
                except OSError:
                    break
        os.close(ours)
        return shown.decode()

    def ship(self) -> None:
        """The project gets a mod of its own called ``house``, as if `builder init` had written it."""
        projects.add_mod(self.project.root, "house", "cp ours.jinja $WORKSPACE_DIR\n", {"ours.jinja": "ours\n"})
        written = {
            path.relative_to(self.project.root).as_posix(): shipped.digest(path.read_bytes())
            for path in (self.project.mods / "house").iterdir()
        }
        shipped.write_shipped_record(self.project, InitRecord("0.1.0", "all", written))

    def know(self, name: str, address: str) -> None:
        projects.write(self.project.root / "builder.yaml", f"mod_sources: {{{name}: '{address}'}}\n")

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


def test_scripts_are_shown_before_a_mod_is_taken(typed: Typed) -> None:
    address, script = f"{typed.url}//mods/house", "cp house.jinja $WORKSPACE_DIR"
    seen = typed.answer("n", "mods", "add", address)
    assert script in seen
    assert "other files of mods/house: house.jinja (4 B)" in seen
    assert "nothing was changed" in seen
    assert not (typed.project.mods / "house").exists()
    assert "mods/house: copied" in typed.answer("y", "mods", "add", address)
    # What is here already needs no look.
    assert script not in typed.run("mods", "add", address)
    brought = typed.run("recipes", "add", f"{typed.url}//recipes/chat.yaml", "--with-mods")
    assert script not in brought
    shutil.rmtree(typed.project.mods)
    brought = typed.run("recipes", "add", f"{typed.url}//recipes/chat.yaml", "--with-mods", "--yes")
    assert brought.index(script) < brought.index("mods/house: copied")


def test_the_name_of_a_mod_will_do_whose_place_is_known(typed: Typed) -> None:
    typed.know("lost", f"{typed.url}//mods/house@main")
    assert "mods/lost: copied" in typed.run("mods", "add", "lost")
    assert (typed.project.mods / "lost/house.jinja").read_text() == "one\n"
    assert "mods/found: copied" in typed.run("mods", "add", "lost", "--as", "found")
    assert "no place of a mod `losst` is known" in (told := typed.run("mods", "add", "losst", code=2))
    assert "did you mean lost?" in told


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


def test_what_a_person_brings_replaces_a_shipped_mod_that_nobody_edited(typed: Typed) -> None:
    typed.ship()
    output = typed.run("mods", "add", f"{typed.url}//mods/house")
    assert "replaces the one that came with builder, which nobody edited" in output
    assert typed.template() == "one\n"
    assert not (typed.project.mods / "house/ours.jinja").exists()
    # From now on it is a copy like others.
    projects.write(typed.project.mods / "house/house.jinja", "mine\n")
    typed.run("mods", "add", f"{typed.url}//mods/house", code=1)
    assert typed.template() == "mine\n"


def test_a_shipped_mod_that_was_edited_is_never_replaced_unasked(typed: Typed) -> None:
    typed.ship()
    projects.write(typed.project.mods / "house/ours.jinja", "mine\n")
    assert "nothing was changed" in typed.run("mods", "add", f"{typed.url}//mods/house", code=1)
    assert "was not copied from anywhere" in typed.run("mods", "add", f"{typed.url}//mods/house", "--yes", code=1)
    recipe = f"{typed.url}//recipes/chat.yaml"
    assert "house" not in typed.run("recipes", "add", recipe, "--with-mods")
    assert (typed.project.mods / "house/ours.jinja").read_text() == "mine\n"


def test_a_recipe_brings_its_own_mod_in_place_of_a_shipped_one(typed: Typed) -> None:
    typed.ship()
    recipe = f"{typed.url}//recipes/chat.yaml"
    output = typed.run("recipes", "add", recipe)
    assert "house: the project has the mod that came with builder; --with-mods takes the repository's own" in output
    assert (typed.project.mods / "house/ours.jinja").exists()
    output = typed.run("recipes", "add", recipe, "--with-mods")
    assert "replaces the one that came with builder, which nobody edited" in output
    assert typed.template() == "one\n"


def test_a_recipe_whose_mod_is_known_elsewhere_offers_it_and_shows_its_script(typed: Typed) -> None:
    projects.add_recipe(typed.upstream.work, "lost", "vllm-node", "Org/Model", ["mods/lost"])
    commit = typed.upstream.commit("A recipe whose mod is elsewhere")
    address = f"{typed.url}//mods/house@{commit}"
    typed.know("lost", address)
    recipe = f"{typed.url}//recipes/lost.yaml"
    remedy = f"has the mod lost; `builder mods add {address} --as lost` brings it from where it is known to be"
    assert remedy in typed.run("recipes", "add", recipe)
    assert "set -eu" not in typed.answer("n", "recipes", "add", recipe)
    seen = typed.answer("yn", "recipes", "add", recipe)
    assert "set -eu\r\ncp house.jinja $WORKSPACE_DIR\r\n" in seen
    assert "other files of mods/lost: house.jinja (4 B)" in seen
    assert not (typed.project.mods / "lost").exists()
    assert "mods/lost: copied, commit" in typed.answer("yy", "recipes", "add", recipe)
    assert (typed.project.mods / "lost/house.jinja").read_text() == "one\n"


def test_up_offers_the_mods_that_its_image_is_still_to_be_built_with(typed: Typed) -> None:
    projects.make(typed.project.root)
    projects.add_recipe(typed.project.root, "lost", "small", "Org/Model", ["mods/lost"])
    address = f"{typed.url}//mods/house@{typed.upstream.git('rev-parse', 'HEAD')}"
    typed.know("lost", address)
    output = typed.run("up", "lost", code=2)
    assert "fetch it" not in output
    assert f"`builder mods add {address} --as lost` brings it from where it is known to be" in output
    declined = typed.answer("n", "up", "lost")
    assert "the recipe names the mod lost, which the project lacks: fetch it from" in declined
    assert not (typed.project.mods / "lost").exists()
    seen = typed.answer("yy", "up", "lost")
    assert "cp house.jinja $WORKSPACE_DIR" in seen
    assert seen.index("cp house.jinja") < seen.index("take mods/lost?") < seen.index("mods/lost: copied")
    assert (typed.project.mods / "lost/house.jinja").read_text() == "one\n"

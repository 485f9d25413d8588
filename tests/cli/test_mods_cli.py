"""``builder mods add`` and its kin as a user types them: what is shown and asked before anything is replaced."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from builder.base.project import Project
from builder.base.words import sha256_of
from builder.cli import mods_cli
from builder.commands import mods
from builder.moving import shipped
from builder.moving.shipped import InitRecord
from tests import program, projects
from tests.commands import git_upstream
from tests.commands.mod_project import INC, NEW, RELEASES, ModProject, diff, made
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
        done = program.run(command(self.project, *arguments))
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
            path.relative_to(self.project.root).as_posix(): sha256_of(path.read_bytes())
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
    # `--as` would rename the recipe.
    (typed.project.mods / "house").parent.mkdir()
    (typed.project.mods / "house").symlink_to(typed.project.root / "elsewhere")
    output = " ".join(typed.run("recipes", "add", f"{typed.url}//recipes/chat.yaml", "--with-mods", code=1).split())
    assert "mods/house is a link" in output
    assert "copy under another name: `builder mods add ADDRESS --as NAME`" in output
    shutil.rmtree(typed.project.mods)
    brought = typed.run("recipes", "add", f"{typed.url}//recipes/chat.yaml", "--with-mods", "--yes")
    assert brought.index(script) < brought.index("mods/house: copied")


def test_the_name_of_a_mod_will_do_whose_place_is_known(typed: Typed) -> None:
    typed.know("lost", f"{typed.url}//mods/house@main")
    assert "mods/lost: copied" in typed.run("mods", "add", "lost")
    assert (typed.project.mods / "lost/house.jinja").read_text() == "one\n"
    assert "mods/found: copied" in typed.run("mods", "add", "lost", "--as", "found")
    assert "no repository is known for the mod `losst`" in (told := typed.run("mods", "add", "losst", code=2))
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
    assert "these files were edited here, and the edits would be lost: house.jinja" in output
    assert "to replace it anyway: `--force`" in output
    assert typed.template() == "mine\n"
    typed.run("mods", "update", "--yes", "--force")
    assert typed.template() == "one\n"


def test_a_recipe_asks_for_its_mods(typed: Typed) -> None:
    address = f"{typed.url}//recipes/chat.yaml"
    assert "the recipe names mods that the project lacks: house; --with-mods" in typed.run("recipes", "add", address)
    assert not (typed.project.mods / "house").exists()
    assert "mods/house: copied, commit" in typed.answer("y", "recipes", "add", address)
    assert typed.template() == "one\n"
    assert "recipes/chat: unchanged in commit" in typed.run("recipes", "update", "chat")


def test_a_mod_that_cannot_be_baked_says_so_at_once(typed: Typed) -> None:
    projects.add_mod(typed.upstream.work, "loop", "nohup sh -c 'while sleep 9; do date; done' &\n", {})
    typed.upstream.commit("Another")
    output = typed.run("mods", "add", f"{typed.url}//mods/loop")
    assert "note: mod loop: run.sh starts a process that outlives the script" in output


def test_what_no_git_should_see_never_reaches_it(typed: Typed, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for address in (f"ext::sh -c touch% {mark}", f"--upload-pack=touch {mark}//x", f"fd::7,8/{mark}//x"):
        assert "is not the address of a repository" in typed.run("mods", "add", "--", address, code=2)
    assert not mark.exists()


def test_what_a_person_brings_replaces_a_shipped_mod_that_nobody_edited(typed: Typed) -> None:
    typed.ship()
    output = typed.run("mods", "add", f"{typed.url}//mods/house")
    assert "replaces the copy that came with builder, which nobody edited" in output
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
    assert "already exists, and is not a copy" in typed.run("mods", "add", f"{typed.url}//mods/house", "--yes", code=1)
    recipe = f"{typed.url}//recipes/chat.yaml"
    assert "house" not in typed.run("recipes", "add", recipe, "--with-mods")
    assert (typed.project.mods / "house/ours.jinja").read_text() == "mine\n"


def test_a_recipe_brings_its_own_mod_in_place_of_a_shipped_one(typed: Typed) -> None:
    typed.ship()
    recipe = f"{typed.url}//recipes/chat.yaml"
    output = typed.run("recipes", "add", recipe)
    assert "the project keeps mods that came with builder: house; --with-mods copies the repository's" in output
    assert (typed.project.mods / "house/ours.jinja").exists()
    output = typed.run("recipes", "add", recipe, "--with-mods")
    assert "replaces the copy that came with builder, which nobody edited" in output
    assert typed.template() == "one\n"


def test_a_recipe_whose_mod_is_known_elsewhere_offers_it_and_shows_its_script(typed: Typed) -> None:
    projects.add_recipe(typed.upstream.work, "lost", "vllm-node", "Org/Model", ["mods/lost"])
    commit = typed.upstream.commit("A recipe whose mod is elsewhere")
    address = f"{typed.url}//mods/house@{commit}"
    typed.know("lost", address)
    recipe = f"{typed.url}//recipes/lost.yaml"
    remedy = f"has the mod lost; `builder mods add {address} --as lost` copies it from its known source"
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
    assert f"`builder mods add {address} --as lost` copies it from its known source" in output
    declined = typed.answer("n", "up", "lost")
    assert "the recipe names the mod lost, which the project lacks: fetch it from" in declined
    assert not (typed.project.mods / "lost").exists()
    seen = typed.answer("yy", "up", "lost")
    assert "cp house.jinja $WORKSPACE_DIR" in seen
    assert (
        seen.index("cp house.jinja") < seen.index("copy mods/lost into the project?") < seen.index("mods/lost: copied")
    )
    assert (typed.project.mods / "lost/house.jinja").read_text() == "one\n"


# ``builder mods`` as a user types it: its text and its JSON.


@pytest.fixture
def there(tmp_path: Path) -> Iterator[ModProject]:
    with made(tmp_path) as there:
        there.add_mod("fix", 'requires: {vllm: "<0.25"}')
        yield there


def run(there: ModProject, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = program.run(
        [sys.executable, "-m", "builder", "--project", str(there.project.root), "mods", *arguments],
        env={**os.environ, **there.environ},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_all_versions_after_against_are_tried(there: ModProject) -> None:
    rows = {
        "0.20.0": "applies",
        "0.21.0": "applies (offset): 2 hunks up to 2 lines away",
        "0.23.0": f"FAILS: {INC}, hunk 2 of 2 (@@ -37,7 +37,7 @@)",
        "0.24.0": "already applied",
        "0.25.0": f"excluded: it requires vllm <0.25; FAILS: {INC} does not exist",
    }
    versions = (f"  vllm {version}  {output}" for version, output in rows.items())
    expected = ["fix", "  requires     vllm <0.25", *versions]
    assert run(there, "check", "fix", "--against", ",".join(rows), code=1).stdout.splitlines() == expected
    assert run(there, "check", "--against", "0.20.0,0.21.0", "--json").returncode == 0
    same = ("check", "--against=0.20.0,0.21.0", "--against", "0.24.0")
    assert len(run(there, *same).stdout.splitlines()) == 5


def test_a_program_gets_every_hunk(there: ModProject) -> None:
    document = json.loads(run(there, "check", "--json", "--against", "0.22.0,0.23.0", code=1).stdout)
    assert document["schema_version"] == 1
    (fix,) = document["mods"]
    assert (fix["mod"], fix["requires"]) == ("fix", {"vllm": "<0.25"})
    part, fails = fix["checks"]
    (place,) = part["patches"][0].pop("reduced")
    assert place.startswith(f"{INC}: at line ")
    assert part["patches"][0].pop("offsets") == []
    assert part == {
        "target": "vllm 0.22.0",
        "state": "applies",
        "holds": True,
        "hint": False,
        "excluded_by": "",
        "missing": "",
        "patches": [
            {"file": "a.patch", "package": "vllm", "against": "vllm 0.22.0", "state": "applies", "problem": ""}
        ],
    }
    assert (fails["state"], fails["holds"]) == ("fails", False)
    assert fails["patches"][0]["problem"].startswith(INC)


def test_without_against_the_pins_are_checked(there: ModProject) -> None:
    there.define("wheel", "0.23.0")
    *_, output = run(there, "check", code=1).stdout.splitlines()
    assert output == f"  wheel     FAILS on vllm 0.23.0: {INC}, hunk 2 of 2 (@@ -37,7 +37,7 @@)"


@pytest.mark.parametrize("against", [tuple(RELEASES), ()])
def test_nothing_is_wider_than_a_terminal(there: ModProject, against: tuple[str, ...]) -> None:
    there.define("wheel", "0.22.0")
    there.define_git("definition-with-a-long-name", "https://example.org/vllm.git")
    yaml = 'requires: {vllm: ">=0.19,<0.23", transformers: ">=5", flashinfer: ">=0.6.7,<0.8"}'
    ten = diff(NEW, NEW.replace("ten\n", "TEN\n"))
    there.add_mod("a-mod-with-a-name-that-is-as-long-as-they-come", yaml, ten)
    projects.add_mod(there.project.root, "bare", "true\n", {})
    projects.add_mod(there.project.root, "required", "true\n", {}, f"description: x\nrun: run.sh\n{yaml}\n")
    if against:
        verdicts = mods.check_mods(there.project, (), against, there.environ, there.report)
    else:
        verdicts = mods.check_pinned_mods(there.project, (), there.environ, there.report)
    lines = list(mods_cli.lines(verdicts, 80))
    assert max(len(click.unstyle(line)) for line in lines) <= 80
    assert len(lines) > 4


def test_the_list_tells_what_each_is(there: ModProject) -> None:
    projects.write(there.project.mods / "broken/mod.yaml", "description: [\n")
    there.define("wheel", "0.20.0", "[fix]")
    output = run(there, "list").stdout.splitlines()
    assert output[0] == "broken"
    assert output[1].startswith("  broken     mods/broken/mod.yaml:")
    assert output[-5:] == [
        "fix",
        "  A mod",
        "  changes    1 patch to vllm",
        "  requires   vllm <0.25",
        "  used by    definition wheel",
    ]
    broken, fix = json.loads(run(there, "list", "--json").stdout)["mods"]
    assert broken["changes"] is None
    assert broken["problem"]
    assert fix["changes"]["patches"] == [{"file": "a.patch", "package": "vllm", "strip": 1}]
    assert (fix["requires"], fix["definitions"], fix["problem"]) == ({"vllm": "<0.25"}, ["wheel"], "")


def test_one_without_patches_is_no_row_a_version(there: ModProject) -> None:
    known = "no patches to check; run.sh runs only in a build"
    proof = "  a `check:` in mod.yaml would prove the mod in each image that is built"
    projects.add_mod(there.project.root, "bare", "sed -i s/a/b/ /x\n", {})
    output = run(there, "check", "bare", "--against", "0.20.0,0.21.0").stdout
    assert output.splitlines() == ["bare", f"  {known}", proof]
    yaml = 'description: x\nrun: run.sh\nrequires: {vllm: ">=0.21"}\n'
    projects.add_mod(there.project.root, "bare", "sed -i s/a/b/ /x\n", {}, yaml)
    rows = run(there, "check", "bare", "--against", "0.20.0,0.21.0", code=1).stdout.splitlines()
    assert rows[2:] == ["  vllm 0.20.0  excluded: it requires vllm >=0.21", f"  vllm 0.21.0  {known}", proof]


def test_patches_that_a_script_applies_are_tried_as_a_hint(there: ModProject) -> None:
    there.define("wheel", "0.23.0")
    script = "patch -p1 -d /usr/lib/python3/dist-packages < one.patch || echo skipped\ngit apply two.diff\n"
    new_file = "--- /dev/null\n+++ b/vllm/new.py\n@@ -0,0 +1 @@\n+new\n"
    projects.add_mod(there.project.root, "loose", script, {"one.patch": diff(), "two.diff": new_file, "3.diff": diff()})
    output = run(there, "check", "loose").stdout.splitlines()
    assert output == [
        "loose",
        f"  wheel  hint: one.patch: does not apply on vllm 0.23.0: {INC}, hunk 2 of 2 (@@ -37,7 +37,7 @@)",
        "         hint: two.diff: applies on vllm 0.23.0",
        "  only hints: run.sh applies the patches itself, and may skip some or change other files",
        "  run.sh does not name 3.diff",
        "  a `check:` in mod.yaml would prove the mod in each image that is built",
    ]
    against = run(there, "check", "loose", "--against", "0.20.0").stdout.splitlines()
    assert against[1:3] == ["  vllm 0.20.0  hint: one.patch: applies", "               hint: two.diff: applies"]
    (mod,) = json.loads(run(there, "check", "loose", "--json").stdout)["mods"]
    assert (mod["checks"][0]["hint"], mod["checks"][0]["state"], mod["checks"][0]["holds"]) == (True, "fails", True)
    assert mod["script"]["patches"] == ["one.patch", "two.diff"]


def test_a_mod_that_belongs_to_run_time_says_what_to_use_in_its_place(there: ModProject) -> None:
    script = "nohup sh -c 'while sleep 9; do echo 3 > /proc/sys/vm/drop_caches; done' &\n"
    projects.add_mod(there.project.root, "loop", script, {})
    first, second = run(there, "check", "loop").stdout.splitlines()
    assert first == "loop"
    assert second.startswith("  run.sh writes /proc/sys/vm/drop_caches and starts a process that outlives the script, ")
    assert "Instead: while a model loads, run this on the machine that serves it: `sudo sh -c '" in second


def test_scripts_that_bring_their_patches_from_elsewhere_promise_nothing(there: ModProject) -> None:
    script = "curl -L https://example.org/1.diff | patch -p1 -d /x || true\n"
    projects.add_mod(there.project.root, "far", script, {})
    assert run(there, "check", "far").stdout.splitlines()[1:] == [
        "  no patches to check; run.sh runs only in a build",
        "  a `check:` in mod.yaml would prove the mod in each image that is built",
    ]


def test_an_invalid_one_is_told_after_the_others(there: ModProject) -> None:
    there.define("wheel", "0.20.0")
    projects.write(there.project.mods / "bad/mod.yaml", "descripton: x\n")
    done = run(there, "check", code=2)
    assert done.stdout.splitlines()[0] == "fix"
    assert "mods/bad/mod.yaml:1:1: unknown key `descripton`" in done.stderr


@pytest.mark.parametrize("named", [[], ["chat"]])
def test_a_chat_template_that_cannot_be_compiled_fails_the_check(there: ModProject, named: list[str]) -> None:
    yaml = "description: A template\nfiles: [{from: ours.jinja, to: .}]\n"
    projects.add_mod(there.project.root, "chat", "", {"ours.jinja": "{% for m in messages %}\n"}, yaml)
    done = run(there, "check", *named, code=2)
    assert "mods/chat/ours.jinja:1:1: this chat template does not compile: Unexpected end of" in done.stderr
    assert run(there, "list").returncode == 0


def test_patches_to_another_package_are_tried_with_its_name(there: ModProject) -> None:
    there.add_mod("other", package="transformers")
    assert run(there, "check", "other", "--against", "0.20.0").stdout.splitlines() == [
        "other",
        "  its patches change transformers; to try them: `--against transformers=VERSION`",
    ]


def test_a_new_one_is_made_and_checked(there: ModProject) -> None:
    assert run(there, "new", "my-mod").stdout.splitlines()[-2:] == [
        "mods/my-mod/mod.yaml",
        "next: `builder mods check my-mod`, then `builder build TARGET --mod my-mod`",
    ]
    assert run(there, "check", "my-mod").stdout.splitlines() == [
        "my-mod",
        "  no patches to check",
        "  the `check:` in mod.yaml proves the mod in each image that is built",
    ]
    assert "already exists" in run(there, "new", "my-mod", code=2).stderr


@pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"], ["list"]])
def test_start_up_imports_nothing_heavy(tmp_path: Path, arguments: list[str]) -> None:
    projects.make(tmp_path)
    heavy = ("docker", "requests", "git", "jinja2", "rich", "packaging", "uv")
    code = (
        "import sys\nfrom builder.cli.main import run_program\n"
        f"run_program({['mods', *arguments]!r})\n"
        f"print('heavy:', [m for m in {heavy!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == "heavy: []", done.stderr

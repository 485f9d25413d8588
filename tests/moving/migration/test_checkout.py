"""A checkout's recipes and mods, as they lie in its folder; nothing outside of it is read."""

from __future__ import annotations

import os
import subprocess
import time
import zipfile
from pathlib import Path

import pytest

from builder.base.errors import FileProblemsError, UsageError
from builder.base.project import Project
from builder.moving import checkout
from builder.sources import foreign_files, git
from tests import projects
from tests.moving.migration import checkouts


def test_everything_in_it_has_its_name(tmp_path: Path) -> None:
    read = checkout.find_checkout(checkouts.make(tmp_path / "theirs"))
    assert set(read.recipes) == {"chat", "4x/large"}
    assert set(read.mods) == {"template", "unused"}


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a checkout of spark-vllm-docker"):
        checkout.find_checkout(tmp_path)
    with pytest.raises(UsageError, match="not a checkout"):
        checkout.find_checkout(tmp_path / "missing")


@pytest.mark.parametrize("text", ["4x/large", "large", "recipes/4x/large.yaml", "large.yaml"])
def test_a_recipe_is_named_as_the_launcher_takes_it(tmp_path: Path, text: str) -> None:
    assert checkout.choose_checkout(checkout.find_checkout(checkouts.make(tmp_path)), [text]) == ("4x/large",)


def test_a_name_that_is_not_there_or_that_two_have(tmp_path: Path) -> None:
    folder = checkouts.make(tmp_path)
    checkouts.add_recipe(folder, "8x/large")
    read = checkout.find_checkout(folder)
    with pytest.raises(UsageError, match="names several recipes: 4x/large, 8x/large"):
        checkout.choose_checkout(read, ["large"])
    with pytest.raises(UsageError, match="has no recipe `chta`") as raised:
        checkout.choose_checkout(read, ["chta"])
    assert raised.value.hint == "did you mean chat?"


def test_mods_are_found_as_recipes_name_them(tmp_path: Path) -> None:
    folder = checkouts.make(tmp_path / "theirs")
    projects.write(folder / "extra/second/run.sh", "true\n")
    projects.write(tmp_path / "outside/run.sh", "true\n")
    read = checkout.find_checkout(folder)
    for entry in ("mods/template", "./mods/template/", "template"):
        path = checkout.mod_at(read, entry)
        assert path is not None
        assert path.name == "template"
    assert checkout.mod_at(read, "extra/second") == folder / "extra/second"
    assert checkout.mod_at(read, "../outside") is None
    assert checkout.mod_at(read, "mods/nowhere") is None


def test_a_zip_of_a_mod_is_read_as_its_files(tmp_path: Path) -> None:
    folder = checkouts.make(tmp_path)
    with zipfile.ZipFile(folder / "mods/packed.zip", "w") as archive:
        archive.writestr("packed/run.sh", "true\n")
        archive.writestr("packed/mod.yaml", "run: run.sh\n")
    read = checkout.find_checkout(folder)
    assert [file.path for file in checkout.read_mod(read, read.mods["packed"])] == ["mod.yaml", "run.sh"]


def test_a_link_out_of_a_mod_is_not_followed(tmp_path: Path) -> None:
    folder = checkouts.make(tmp_path / "theirs")
    projects.write(tmp_path / "secret", "geheim\n")
    (folder / "mods/template/key").symlink_to(tmp_path / "secret")
    (folder / "mods/template/same").symlink_to("chat.jinja")
    read = checkout.find_checkout(folder)
    with pytest.raises(FileProblemsError, match="key:1:1: a link that leaves the mod's folder") as raised:
        checkout.read_mod(read, read.mods["template"])
    assert len(raised.value.problems) == 1


# ``.env`` as bash reads simple assignments; what bash reads of the same text is the judge.


def read(text: str) -> dict[str, str]:
    return checkout.parse_env_file(text, ".env").values


def problems(text: str) -> list[str]:
    return [f"{problem.location.line}: {problem.message}" for problem in checkout.parse_env_file(text, ".env").problems]


@pytest.mark.parametrize(
    "line",
    [
        "X=plain",
        "X='single $HOME `ls` \"quoted\"'",
        "X=\"double 'quoted' #\"",
        "export X=exported",
        "X=value # a comment",
        "X=no#comment",
        "X='# none' # one",
        "X=",
        'X="one # two"',
        "  X=indented  ",
        "X=10.0.0.1,10.0.0.2",
        "X=a=b",
    ],
)
def test_a_value_is_the_one_that_bash_gives_it(line: str) -> None:
    script = f'{line}\nprintf "%s" "$X"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env={"HOME": "/h"})
    assert read(line) == {"X": done.stdout}


def test_blanks_are_taken_as_the_launcher_takes_them() -> None:
    assert read("X = spaced out\r\nY=two words # and a comment\n") == {"X": "spaced out", "Y": "two words"}


def test_json_keeps_its_quotes_as_in_the_launcher() -> None:
    text = """A={"a": {"b": "c"}}  # none\nB='["x"]'\nC=["x", 1]\nD={"a": "$b"}\nE={"a"} x\n"""
    assert read(text) == {"A": '{"a": {"b": "c"}}', "B": '["x"]', "C": '["x", 1]'}
    assert len(problems(text)) == 2
    assert read("A=[1] # see [docs]\n") == {"A": "[1]"}


def test_a_line_with_many_blanks_takes_no_longer() -> None:
    began = time.thread_time()
    assert read(f"A=x{' ' * 50_000}y # none\n") == {"A": f"x{' ' * 50_000}y"}
    assert read(f"A=x{' ' * 50_000}$y\n") == {}
    assert read(f"A={{{'} ' * 50_000}$\n") == {}
    assert time.thread_time() - began < 5


@pytest.mark.parametrize(
    "value",
    ["$HOME/x", "$(touch /tmp/never)", "`date`", '"${E}"', '"a \\" b"', "a'b'", "a\\ b", "'open", '"open\\"', "it's"],
)
def test_any_other_value_is_a_problem_and_nothing_runs(value: str) -> None:
    text = f"A={value}\nB=fine\n"
    assert read(text) == {"B": "fine"}
    assert problems(text) == ["1: the value of A is neither plain nor in one pair of quotes: left out"]


def test_lines_that_are_no_assignment_leave_the_others_alone() -> None:
    text = "# comment\n\nsource other\nA=1\nB='open\n9X=1\nA=2\n"
    assert read(text) == {"A": "2"}
    assert problems(text) == [
        "3: not an assignment NAME=VALUE: left out",
        "5: the value of B is neither plain nor in one pair of quotes: left out",
        "6: not an assignment NAME=VALUE: left out",
        "7: A is already set in line 4: the last value counts",
    ]


def test_no_message_and_no_repr_shows_a_value() -> None:
    parsed = checkout.parse_env_file("CONTAINER_TOKEN=geheim1\nCONTAINER_TOKEN='geheim2\nX geheim3\n", ".env")
    assert "geheim" not in repr(parsed)
    assert len(parsed.problems) == 2


# Where the files of a checkout come from, with real git: upstream's own, the user's, and edited ones.


def test_what_upstream_has_comes_from_there(tmp_path: Path) -> None:
    folder = checkouts.cloned(tmp_path / "theirs")
    upstream = checkout.find_upstream_commit(folder)
    assert upstream is not None
    assert (upstream.url, upstream.ref) == (str(tmp_path / "upstream"), "HEAD")
    assert upstream.commit == checkouts.git(folder, "rev-parse", "HEAD")
    read = checkout.find_checkout(folder)
    part = checkout.plan_part(Project(tmp_path / "project"), read, "mod", "template", read.mods["template"], upstream)
    assert part.origin is not None
    assert (part.origin.path, part.origin.commit) == ("mods/template", upstream.commit)
    assert set(part.origin.files) == {"chat.jinja", "run.sh"}


def test_what_was_edited_or_added_or_committed_here_is_the_users_own(tmp_path: Path) -> None:
    folder = checkouts.cloned(tmp_path / "theirs")
    projects.write(folder / "mods/template/chat.jinja", "edited\n")
    checkouts.add_recipe(folder, "own")
    projects.write(folder / "mods/unused/further", "new\n")
    checkouts.git(folder, "add", "--all")
    checkouts.git(folder, "commit", "--quiet", "--message=mine")
    read, upstream = checkout.find_checkout(folder), checkout.find_upstream_commit(folder)
    assert upstream is not None
    assert upstream.commit == checkouts.git(folder, "rev-parse", "HEAD~1")
    project = Project(tmp_path / "project")
    assert checkout.plan_part(project, read, "mod", "template", read.mods["template"], upstream).origin is None
    assert checkout.plan_part(project, read, "mod", "unused", read.mods["unused"], upstream).origin is None
    assert checkout.plan_part(project, read, "recipe", "own", read.recipes["own"], upstream).origin is None
    assert checkout.plan_part(project, read, "recipe", "chat", read.recipes["chat"], upstream).origin is not None


def test_a_folder_that_is_no_clone_has_no_origin(tmp_path: Path) -> None:
    folder = checkouts.make(tmp_path / "theirs")
    assert checkout.find_upstream_commit(folder) is None
    checkouts.git(folder, "init", "--quiet")
    assert checkout.find_upstream_commit(folder) is None


def test_a_login_in_the_address_is_not_recorded(tmp_path: Path) -> None:
    folder = checkouts.cloned(tmp_path / "theirs")
    checkouts.git(folder, "remote", "set-url", "origin", "https://me:geheim@example.org/x.git")
    upstream = checkout.find_upstream_commit(folder)
    assert upstream is not None
    assert upstream.url == "https://example.org/x.git"


def test_nothing_in_it_is_read_without_an_end(tmp_path: Path) -> None:
    """A sparse file, a pipe and a device in the places of files; a pipe that git's settings include."""
    folder = checkouts.cloned(tmp_path / "theirs")
    (folder / "recipes/chat.yaml").unlink()
    os.mkfifo(folder / "recipes/chat.yaml")
    with (folder / "recipes/huge.yaml").open("wb") as sparse:
        sparse.truncate(40 << 30)
    with (folder / "mods/template/huge").open("wb") as sparse:
        sparse.truncate(40 << 30)
    os.mkfifo(folder / "mods/unused/pipe")
    read, project = checkout.find_checkout(folder), Project(tmp_path / "project")
    assert "larger than" in checkout.plan_part(project, read, "recipe", "huge", read.recipes["huge"], None).reason
    for name in ("template", "unused"):
        assert checkout.plan_part(project, read, "mod", name, read.mods[name], None).state == "unfit"


@pytest.mark.slow
def test_a_pipe_that_settings_include_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkouts.cloned(tmp_path / "theirs")
    assert checkout.find_upstream_commit(folder)
    os.mkfifo(tmp_path / "pipe")
    checkouts.git(folder, "config", "include.path", str(tmp_path / "pipe"))
    monkeypatch.setattr(checkout, "_SECONDS", 0.5)
    monkeypatch.setattr(git, "PROJECT_SECONDS", 0.5)
    assert checkout.find_upstream_commit(folder) is None
    assert foreign_files.commit_of(folder) == ""

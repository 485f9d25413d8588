"""Where the files of a checkout come from, with real git: upstream's own, the user's, and edited ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.base.project import Project
from builder.moving import checkout, taking
from builder.sources import foreign_files, git
from tests import projects
from tests.migration import checkouts


def test_what_upstream_has_comes_from_there(tmp_path: Path) -> None:
    folder = checkouts.cloned(tmp_path / "theirs")
    upstream = checkout.find_upstream_commit(folder)
    assert upstream is not None
    assert (upstream.url, upstream.ref) == (str(tmp_path / "upstream"), "HEAD")
    assert upstream.commit == checkouts.git(folder, "rev-parse", "HEAD")
    read = checkout.find_checkout(folder)
    part = taking.plan_part(Project(tmp_path / "project"), read, "mod", "template", read.mods["template"], upstream)
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
    assert taking.plan_part(project, read, "mod", "template", read.mods["template"], upstream).origin is None
    assert taking.plan_part(project, read, "mod", "unused", read.mods["unused"], upstream).origin is None
    assert taking.plan_part(project, read, "recipe", "own", read.recipes["own"], upstream).origin is None
    assert taking.plan_part(project, read, "recipe", "chat", read.recipes["chat"], upstream).origin is not None


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


def test_other_files_that_are_the_users_own_are_told(tmp_path: Path) -> None:
    folder = checkouts.cloned(tmp_path / "theirs")
    upstream = checkout.find_upstream_commit(folder)
    assert checkout.edited(upstream, folder, ["launch-cluster.sh", "Dockerfile"]) == ()
    projects.write(folder / "launch-cluster.sh", "edited\n")
    projects.write(folder / "Dockerfile", "FROM scratch\n")
    assert checkout.edited(upstream, folder, ["launch-cluster.sh", "Dockerfile"]) == ("launch-cluster.sh", "Dockerfile")
    assert checkout.edited(None, folder, ["Dockerfile", "missing"]) == ("Dockerfile",)


def test_nothing_in_it_is_read_without_an_end(tmp_path: Path) -> None:
    """A sparse file, a pipe and a device in the places of files; a pipe that git's settings include."""
    folder = checkouts.cloned(tmp_path / "theirs")
    with (folder / "Dockerfile").open("wb") as sparse:
        sparse.truncate(40 << 30)
    (folder / "recipes/chat.yaml").unlink()
    os.mkfifo(folder / "recipes/chat.yaml")
    with (folder / "recipes/huge.yaml").open("wb") as sparse:
        sparse.truncate(40 << 30)
    with (folder / "mods/template/huge").open("wb") as sparse:
        sparse.truncate(40 << 30)
    os.mkfifo(folder / "mods/unused/pipe")
    read, project = checkout.find_checkout(folder), Project(tmp_path / "project")
    assert checkout.edited(None, folder, ["Dockerfile", "recipes/chat.yaml"]) == ("Dockerfile",)
    assert "larger than" in taking.plan_part(project, read, "recipe", "huge", read.recipes["huge"], None).reason
    for name in ("template", "unused"):
        assert taking.plan_part(project, read, "mod", name, read.mods[name], None).state == "unfit"


def test_a_pipe_that_settings_include_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkouts.cloned(tmp_path / "theirs")
    assert checkout.find_upstream_commit(folder)
    os.mkfifo(tmp_path / "pipe")
    checkouts.git(folder, "config", "include.path", str(tmp_path / "pipe"))
    monkeypatch.setattr(checkout, "_SECONDS", 0.5)
    monkeypatch.setattr(git, "PROJECT_SECONDS", 0.5)
    assert checkout.find_upstream_commit(folder) is None
    assert foreign_files.commit_of(folder) == ""

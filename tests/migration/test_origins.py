"""Where the files of a checkout come from, with real git: upstream's own, the user's, and edited ones."""

from __future__ import annotations

from pathlib import Path

from builder.migration import checkout, origins, taking
from builder.project import Project
from tests import projects
from tests.migration import checkouts


def test_what_upstream_has_comes_from_there(tmp_path: Path) -> None:
    folder = checkouts.cloned(tmp_path / "theirs")
    upstream = origins.find(folder)
    assert upstream is not None
    assert (upstream.url, upstream.ref) == (str(tmp_path / "upstream"), "HEAD")
    assert upstream.commit == checkouts.git(folder, "rev-parse", "HEAD")
    read = checkout.find(folder)
    part = taking.mod(Project(tmp_path / "project"), read, read.mods["template"], upstream)
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
    read, upstream = checkout.find(folder), origins.find(folder)
    assert upstream is not None
    assert upstream.commit == checkouts.git(folder, "rev-parse", "HEAD~1")
    project = Project(tmp_path / "project")
    assert taking.mod(project, read, read.mods["template"], upstream).origin is None
    assert taking.mod(project, read, read.mods["unused"], upstream).origin is None
    assert taking.recipe(project, read, "own", upstream).origin is None
    assert taking.recipe(project, read, "chat", upstream).origin is not None


def test_a_folder_that_is_no_clone_has_no_origin(tmp_path: Path) -> None:
    folder = checkouts.make(tmp_path / "theirs")
    assert origins.find(folder) is None
    checkouts.git(folder, "init", "--quiet")
    assert origins.find(folder) is None


def test_a_login_in_the_address_is_not_recorded(tmp_path: Path) -> None:
    folder = checkouts.cloned(tmp_path / "theirs")
    checkouts.git(folder, "remote", "set-url", "origin", "https://me:geheim@example.org/x.git")
    upstream = origins.find(folder)
    assert upstream is not None
    assert upstream.url == "https://example.org/x.git"


def test_other_files_that_are_the_users_own_are_told(tmp_path: Path) -> None:
    folder = checkouts.cloned(tmp_path / "theirs")
    upstream = origins.find(folder)
    assert origins.edited(upstream, folder, ["launch-cluster.sh", "Dockerfile"]) == ()
    projects.write(folder / "launch-cluster.sh", "edited\n")
    projects.write(folder / "Dockerfile", "FROM scratch\n")
    assert origins.edited(upstream, folder, ["launch-cluster.sh", "Dockerfile"]) == ("launch-cluster.sh", "Dockerfile")
    assert origins.edited(None, folder, ["Dockerfile", "missing"]) == ("Dockerfile",)

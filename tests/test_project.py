from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.base import project
from builder.base.errors import UnsafePathError, UsageError
from builder.base.project import Project
from builder.commands import init


def test_a_project_is_found_from_any_folder_in_it(tmp_path: Path) -> None:
    (tmp_path / "dockerfiles").mkdir()
    deep = tmp_path / "mods/one"
    deep.mkdir(parents=True)
    assert project.find_project(deep) == project.find_project(tmp_path) == Project(tmp_path)


def test_the_nearest_project_counts(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    for folder in (tmp_path, inner):
        (folder / "dockerfiles").mkdir(parents=True)
    assert project.find_project(inner / "dockerfiles") == Project(inner)


def test_a_project_whose_path_is_no_text_is_refused(tmp_path: Path) -> None:
    unreadable = tmp_path / os.fsdecode(b"of \xfcser")
    (unreadable / "inner/dockerfiles").mkdir(parents=True)
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        project.find_project(unreadable / "inner")
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        init.init_project(unreadable / "other", None, {})
    assert not (unreadable / "other").exists()


def test_outside_of_a_project_it_is_said_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no project found") as caught:
        project.find_project(tmp_path)
    assert "builder --project FOLDER" in (caught.value.hint or "")


def test_a_path_is_told_from_the_folder_of_the_project(tmp_path: Path) -> None:
    project = Project(tmp_path)
    assert project.relative(tmp_path / "mods/../recipes/a.yaml") == "recipes/a.yaml"
    assert project.relative(tmp_path.parent / "a.yaml") == str(tmp_path.parent / "a.yaml")


@pytest.mark.parametrize("folder", ["journal", "work"])
def test_what_a_killed_process_left_is_unfinished(tmp_path: Path, folder: str) -> None:
    project = Project(tmp_path)
    assert not project.unfinished
    place = project.state / folder
    place.mkdir(parents=True)
    assert not project.unfinished
    (place / "small-1").touch()
    assert project.unfinished


@pytest.fixture
def made(tmp_path: Path) -> Project:
    """A project and a folder beside it that must not be changed."""
    (tmp_path / "victim/small/1").mkdir(parents=True)
    (tmp_path / "project/dockerfiles").mkdir(parents=True)
    (tmp_path / "project/builds").mkdir()
    return Project(tmp_path / "project")


@pytest.mark.parametrize("name", ["../../victim/small", "/etc", "..", "../builds/../.."])
def test_a_build_directory_lies_in_its_project(made: Project, name: str) -> None:
    with pytest.raises(UnsafePathError, match="leads out of"):
        made.build_directory(name, 1)


@pytest.mark.parametrize("link", ["builds", "builds/small", "builds/small/1"])
def test_a_link_leads_no_build_directory_elsewhere(made: Project, link: str) -> None:
    assert made.build_directory("small", 1) == made.root / "builds/small/1"
    path = made.root / link
    if link == "builds":
        path.rmdir()
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(made.root.parent / "victim" / Path(link).relative_to("builds"))
    with pytest.raises(UnsafePathError, match="nothing was changed"):
        made.build_directory("small", 1)


@pytest.mark.parametrize("name", ["work", "journal", "unchanged", "mirrors", "logs", "wheels", "engine.json"])
def test_the_state_folder_holds_no_link(made: Project, name: str) -> None:
    made.state.mkdir()
    (made.state / name).symlink_to(made.root.parent / "victim")
    with pytest.raises(UnsafePathError, match=f"{name} is a link"):
        project.find_project(made.root)


@pytest.mark.parametrize("name", ["serve-logs/chat.log", "logs/build.log", "journal/small.json", "unchanged/x"])
def test_no_file_in_the_state_folder_that_is_written_is_a_link(made: Project, name: str) -> None:
    (made.state / name).parent.mkdir(parents=True)
    (made.state / name).symlink_to("../../../victim")
    with pytest.raises(UnsafePathError, match=f"{name} is a link"):
        project.find_project(made.root)


def test_a_remedy_quotes_a_folder_with_spaces(tmp_path: Path) -> None:
    root = tmp_path / "my project"
    (root / "dockerfiles").mkdir(parents=True)
    root.chmod(0o777)
    with pytest.raises(UnsafePathError) as caught:
        project.find_project(root)
    assert f"`chmod o-w '{root}'`" in caught.value.hint


@pytest.mark.parametrize("name", [".", ".builder", ".builder/journal", ".builder/upgrading"])
def test_a_folder_in_which_anybody_may_write_is_refused_with_the_remedy(made: Project, name: str) -> None:
    folder = made.root / name
    folder.mkdir(parents=True, exist_ok=True)
    assert project.find_project(made.root) == made
    mode = folder.stat().st_mode & 0o777
    folder.chmod(mode | 0o020)  # write access of a group was granted on purpose
    assert project.find_project(made.root) == made
    folder.chmod(mode | 0o002)
    with pytest.raises(UnsafePathError, match="every user of this machine can write to") as caught:
        project.find_project(made.root)
    assert f"chmod o-w {folder}" in (caught.value.hint or "")
    folder.chmod(mode)
    assert project.find_project(made.root) == made


@pytest.mark.parametrize("name", [".builder", ".builder/mirrors"])
def test_a_state_folder_of_another_user_is_refused_with_the_remedy(
    made: Project, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made.root / name
    folder.mkdir(parents=True)
    me = os.geteuid()
    if me == 0:
        os.chown(folder, 4321, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4321)
    with pytest.raises(UnsafePathError, match=f"{name} belongs to another user") as caught:
        project.find_project(made.root)
    assert f"sudo chown -R {me or 0}" in (caught.value.hint or "") or me
    if me == 0:
        monkeypatch.setenv("SUDO_UID", "4321")
        assert project.find_project(made.root) == made


def test_the_state_folder_may_be_on_another_disk_but_not_elsewhere(made: Project) -> None:
    made.state.symlink_to(made.root.parent / "disk")
    assert project.find_project(made.root) == made
    (made.root.parent / "disk/work").mkdir(parents=True)
    assert project.find_project(made.root) == made
    made.state.unlink()
    made.state.symlink_to(made.root.parent)
    with pytest.raises(UnsafePathError, match="which contains other files"):
        project.find_project(made.root)

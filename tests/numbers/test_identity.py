from __future__ import annotations

import json
import os
import re
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.numbers import claims
from builder.numbers.claims import ProjectIdentity

if TYPE_CHECKING:
    from pathlib import Path


def test_a_project_gets_its_identity_once(tmp_path: Path) -> None:
    project = Project(tmp_path)
    assert claims.existing_identity(project) == ""
    ids: list[str] = []
    threads = [threading.Thread(target=lambda: ids.append(claims.project_identity(project).id)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 8
    assert {*ids, claims.existing_identity(project)} == {ids[0]}
    assert claims.of_labels(claims.project_identity(project).labels) == claims.project_identity(project)


def test_a_copy_is_another_project_and_a_moved_one_the_same(tmp_path: Path) -> None:
    own = claims.project_identity(Project(tmp_path / "first"))
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    (tmp_path / "hard/.builder").mkdir(parents=True)
    os.link(tmp_path / "first/.builder/id", tmp_path / "hard/.builder/id")
    assert not claims.is_gone(own)
    assert len({claims.project_identity(Project(tmp_path / name)).id for name in ("first", "copy", "hard")}) == 3
    (tmp_path / "first").rename(tmp_path / "moved")
    assert claims.project_identity(Project(tmp_path / "moved")).id == own.id
    assert claims.is_gone(own), "nothing is at the place where it was"
    claims.project_identity(Project(tmp_path / "first"))
    assert claims.is_gone(own), "another clone is at the place where it was"


def test_what_cannot_be_told_counts_as_there(tmp_path: Path) -> None:
    own = claims.project_identity(Project(tmp_path))
    elsewhere = ProjectIdentity(own.id, "/nowhere", "another", "0" * 16)
    assert not claims.is_gone(elsewhere)
    assert not claims.is_gone(claims.of_labels({}))
    assert not claims.is_gone(ProjectIdentity(own.id, "/no\0where", own.host, own.machine))
    assert claims.is_gone(ProjectIdentity(own.id, "/nowhere", own.host, own.machine))


def test_a_machine_is_called_as_in_every_version(tmp_path: Path) -> None:
    """By a name of another form, projects of other versions on this machine would count as those of another one."""
    own = claims.project_identity(Project(tmp_path))
    assert re.fullmatch("[0-9a-f]{16}", own.machine)
    assert own.machine == claims.project_identity(Project(tmp_path / "other")).machine


@pytest.mark.parametrize("content", ["", "[", "[]", "{}", '{"id": 3, "inode": 1}', "[" * 4000, "x" * 9000])
def test_a_damaged_file_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / ".builder").mkdir()
    (tmp_path / ".builder/id").write_text(content, encoding="utf-8")
    own = claims.project_identity(Project(tmp_path))
    assert json.loads((tmp_path / ".builder/id").read_bytes())["id"] == own.id


def test_a_pipe_in_the_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    """The folder is one that a label names, and a label may be anybody's."""
    (tmp_path / ".builder").mkdir()
    os.mkfifo(tmp_path / ".builder/id")
    own = claims.project_identity(Project(tmp_path / "own"))
    assert claims.is_gone(ProjectIdentity("0" * 32, str(tmp_path), own.host, own.machine))

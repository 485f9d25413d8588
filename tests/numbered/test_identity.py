from __future__ import annotations

import json
import os
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from builder.numbered import identity
from builder.numbered.identity import ProjectIdentity
from builder.project import Project

if TYPE_CHECKING:
    from pathlib import Path


def test_a_project_gets_its_identity_once(tmp_path: Path) -> None:
    project = Project(tmp_path)
    assert identity.existing(project) == ""
    ids: list[str] = []
    threads = [threading.Thread(target=lambda: ids.append(identity.of(project).id)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 8
    assert {*ids, identity.existing(project)} == {ids[0]}
    assert identity.of_labels(identity.of(project).labels) == identity.of(project)


def test_a_copy_is_another_project_and_a_moved_one_the_same(tmp_path: Path) -> None:
    own = identity.of(Project(tmp_path / "first"))
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    (tmp_path / "hard/.builder").mkdir(parents=True)
    os.link(tmp_path / "first/.builder/id", tmp_path / "hard/.builder/id")
    assert not identity.is_gone(own)
    assert len({identity.of(Project(tmp_path / name)).id for name in ("first", "copy", "hard")}) == 3
    (tmp_path / "first").rename(tmp_path / "moved")
    assert identity.of(Project(tmp_path / "moved")).id == own.id
    assert identity.is_gone(own), "nothing is at the place where it was"
    identity.of(Project(tmp_path / "first"))
    assert identity.is_gone(own), "another clone is at the place where it was"


def test_what_cannot_be_told_counts_as_there(tmp_path: Path) -> None:
    own = identity.of(Project(tmp_path))
    elsewhere = ProjectIdentity(own.id, "/nowhere", "another", "0" * 16)
    assert not identity.is_gone(elsewhere)
    assert not identity.is_gone(identity.of_labels({}))
    assert not identity.is_gone(ProjectIdentity(own.id, "/no\0where", own.host, own.machine))
    assert identity.is_gone(ProjectIdentity(own.id, "/nowhere", own.host, own.machine))


@pytest.mark.parametrize("content", ["", "[", "[]", "{}", '{"id": 3, "inode": 1}', "[" * 4000, "x" * 9000])
def test_a_damaged_file_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / ".builder").mkdir()
    (tmp_path / ".builder/id").write_text(content, encoding="utf-8")
    own = identity.of(Project(tmp_path))
    assert json.loads((tmp_path / ".builder/id").read_bytes())["id"] == own.id


def test_a_pipe_in_the_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    """The folder is one that a label names, and a label may be anybody's."""
    (tmp_path / ".builder").mkdir()
    os.mkfifo(tmp_path / ".builder/id")
    own = identity.of(Project(tmp_path / "own"))
    assert identity.is_gone(ProjectIdentity("0" * 32, str(tmp_path), own.host, own.machine))

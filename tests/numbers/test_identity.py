from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import threading
from pathlib import Path

import pytest

from builder.base.project import Project
from builder.lock.model import ImageName, Lock, Repository
from builder.numbers import claims
from builder.numbers.claims import ProjectIdentity
from tests.locks import numbered
from tests.workspaces import NO_ENGINE, workspace


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
    file = Path("/etc/machine-id")
    machine_id = file.read_text(encoding="ascii").strip() if file.is_file() else ""
    known = machine_id or f"file system {Path('/').stat().st_dev}"
    assert own.machine == hashlib.sha256(f"builder {known} {os.uname().nodename}".encode()).hexdigest()[:16]


@pytest.mark.parametrize("content", ["", "[", "[]", "{}", '{"id": 3, "inode": 1}', "[" * 4000, "x" * 9000])
def test_a_damaged_file_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / ".builder").mkdir()
    (tmp_path / ".builder/id").write_text(content, encoding="utf-8")
    own = claims.project_identity(Project(tmp_path))
    assert json.loads((tmp_path / ".builder/id").read_bytes())["id"] == own.id


def test_a_file_that_cannot_be_read_is_no_proof_that_a_project_is_gone(tmp_path: Path) -> None:
    own = claims.project_identity(Project(tmp_path))
    (tmp_path / ".builder/id").unlink()
    (tmp_path / ".builder/id").mkdir()
    assert not claims.is_gone(own)
    with pytest.raises(IsADirectoryError):
        claims.existing_identity(Project(tmp_path))


def test_a_pipe_in_the_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    """The folder is one that a label names, and a label may be anybody's."""
    (tmp_path / ".builder").mkdir()
    os.mkfifo(tmp_path / ".builder/id")
    own = claims.project_identity(Project(tmp_path / "own"))
    assert claims.is_gone(ProjectIdentity("0" * 32, str(tmp_path), own.host, own.machine))


def test_a_project_is_named_by_its_folder_and_the_host_that_is_known() -> None:
    assert str(ProjectIdentity("1", "/a/project", "spark")) == "the project in /a/project on spark"
    assert str(claims.of_labels({"builder.project": "1"})) == "the project in ?"


# The next number, above every number that images ever had.


@pytest.mark.parametrize(
    ("lock", "tags", "folders", "number"),
    [
        (Lock(), [], [], 1),
        (Lock(images={"small": Repository(next=7)}), [], [], 7),
        (Lock().with_image(ImageName("small", 3), numbered()), ["small:2"], ["builds/small/1"], 4),
        (Lock(), ["small:9", "small:latest", "small:day-11", "smaller:20", "other/small:30"], [], 10),
        (Lock(), ["small:9", f"small:{'9' * 18}", f"small:{'1' * 40}"], [], 10),
        (Lock(), [f"small:{'9' * 17}"], [], 10**17),
        (Lock(), [], ["builds/small/5", "builds/small/.6.new", "builds/other/8"], 6),
        (Lock(), [], ["builds/small/1", "evidence/small/12"], 13),
    ],
)
def test_the_next_number_is_above_all_that_were_given(
    tmp_path: Path, lock: Lock, tags: list[str], folders: list[str], number: int
) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    assert claims.free_number(Project(tmp_path), lock, "small", tags) == number


@pytest.mark.parametrize("folder", ["builds", "evidence"])
def test_a_number_that_a_folder_still_has_is_said_to_be_the_reason_for_the_next(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder / "small/4").mkdir(parents=True)
    reason = claims.reason(workspace(Project(tmp_path), NO_ENGINE), ImageName("small", 5))
    assert reason == f"{folder}/small/4 exists, so 4 is already taken"

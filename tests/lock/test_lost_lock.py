"""A missing images.lock is lost, or there is none yet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import LockError
from builder.base.project import Project
from builder.lock import lock_file
from builder.lock.model import Lock
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def build(project: Project, name: str) -> None:
    projects.write(project.builds / name / "bake.json", "{}")


def note(project: Project, repository: str, number: int, engine_id: str) -> None:
    noted = {"repository": repository, "number": number, "engine_id": engine_id}
    projects.write(project.journal / f"{repository.replace('/', '_')}.json", json.dumps(noted))


def test_a_project_in_which_nothing_was_built_has_none_yet(project: Project) -> None:
    assert lock_file.read_project_lock(project) == Lock()
    (project.builds / "small").mkdir(parents=True)
    projects.write(project.builds / "small/README.md", "what is built is kept here\n")
    assert lock_file.read_project_lock(project) == Lock()


@pytest.mark.parametrize("name", ["small/1", "org/team/small/12"])
def test_it_is_lost_where_something_was_built(project: Project, name: str) -> None:
    build(project, name)
    with pytest.raises(LockError, match="images.lock is lost") as refused:
        lock_file.read_project_lock(project)
    assert "`git checkout -- images.lock`" in refused.value.hint
    assert "`builder lock --recover`" in refused.value.hint
    with lock_file.writing(project.lock) as transaction:
        transaction.commit(Lock())
    assert lock_file.read_project_lock(project) == Lock()


def test_a_first_number_that_is_being_given_loses_nothing(project: Project) -> None:
    build(project, "org/small/1")
    build(project, "org/small/1/mods/9")  # a mod may hold anything
    note(project, "org/small", 1, f"sha256:{'1' * 64}")
    assert not lock_file.is_lost(project)
    build(project, "org/small/2")
    assert lock_file.is_lost(project)


def test_a_pointer_that_is_being_moved_does(project: Project) -> None:
    build(project, "small/1")
    note(project, "small", 1, "")
    assert lock_file.is_lost(project)

"""Transactions where no engine answers; what they do in one is tested by the commands."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import EngineError
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock
from builder.numbers import claims, images_lock
from tests import locks, projects
from tests.workspaces import NO_ENGINE, workspace

if TYPE_CHECKING:
    from pathlib import Path


def test_where_nothing_was_announced_nobody_waits_for_who_writes(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    with lock_file.writing(project.lock):
        images_lock.recover_transaction(workspace(project, NO_ENGINE))


def test_a_change_of_a_mark_needs_no_engine_and_leaves_nothing(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    locks.write(project, (1, 2), current=2)
    projects.write(project.journal / ".small.json.1.2", "of a process that was killed")
    with images_lock.transaction(workspace(project, NO_ENGINE)) as transaction:
        assert not list(project.journal.iterdir())
        assert claims.existing_identity(project)
        assert not transaction.commit(transaction.lock)
        name = ImageName("small", 1)
        assert transaction.commit(transaction.lock.with_image(name, replace(locks.numbered(), status="bad")))
        assert transaction.lock.images["small"].numbers[1].status == "bad"
    assert lock_file.read_lock(project.lock).images["small"].numbers[1].status == "bad"
    assert not list(project.journal.iterdir())


def test_a_pointer_that_moves_is_announced_before_it_is_recorded(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    locks.write(project, (1, 2), current=2)
    with pytest.raises(EngineError), images_lock.transaction(workspace(project, NO_ENGINE)) as transaction:
        assert transaction.commit(transaction.lock.with_current(ImageName("small", 1)))
    assert lock_file.read_lock(project.lock).images["small"].current == 1
    assert [(entry.name, entry.engine_id) for entry in lock_file.journal_entries(project)] == [
        (ImageName("small", 1), "")
    ]


def test_a_damaged_lock_is_written_again_and_the_journal_waits(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.write(project.lock, "damaged\n")
    lock_file.write_journal(project, ImageName("small", 3), "")
    lock = Lock().with_image(ImageName("small", 1), locks.numbered())
    with images_lock.repair_lock(workspace(project, NO_ENGINE), lambda *_: Lock()) as writer:
        assert writer.commit(lock)
    assert lock_file.read_lock(project.lock) == lock
    assert [entry.name for entry in lock_file.journal_entries(project)] == [ImageName("small", 3)]


def test_what_a_killed_process_announced_is_settled_before_anything_else_changes(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    locks.write(project, (1, 2), current=2)
    before = project.lock.read_bytes()
    lock_file.write_journal(project, ImageName("small", 3), "")
    for recover in (images_lock.recover_transaction, lambda here: images_lock.transaction(here).__enter__()):
        with pytest.raises(EngineError):
            recover(workspace(project, NO_ENGINE))
        assert [entry.name for entry in lock_file.journal_entries(project)] == [ImageName("small", 3)]
    assert project.lock.read_bytes() == before

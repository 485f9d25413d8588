"""Transactions where no engine answers; what they do in one is tested by the commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import EngineError
from builder.lock import lock_file
from builder.lock.model import ImageName
from builder.numbers import images_lock
from tests import locks, projects
from tests.workspaces import NO_ENGINE, workspace

if TYPE_CHECKING:
    from pathlib import Path


def test_where_nothing_was_announced_nobody_waits_for_who_writes(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    with lock_file.writing(project.lock):
        images_lock.recover_transaction(workspace(project, NO_ENGINE))


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

"""Folders of builds in progress: nothing of a killed process stays, and nothing of a running one goes."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import signal
import tempfile
from pathlib import Path

import pytest

from builder.base import files
from builder.base.project import Project
from builder.building import work_folder
from builder.engine import bake_run
from builder.engine.client import Endpoint
from builder.numbers.workspace import Workspace
from builder.plan.plan_model import StagedFile
from tests.workspaces import workspace

pytestmark = pytest.mark.engine

FILES = {"plan.json": StagedFile(b"{}"), "mods/a/run.sh": StagedFile(b"true", executable=True)}
STEPS = [(Path, "mkdir"), (fcntl, "flock"), (Path, "exists"), (Path, "write_bytes"), (Path, "chmod")]


@pytest.fixture
def context(tmp_path: Path, endpoint: Endpoint) -> Workspace:
    (tmp_path / "dockerfiles").mkdir()
    return workspace(Project(tmp_path), endpoint)


@pytest.mark.parametrize(("owner", "call"), STEPS, ids=[call for _, call in STEPS])
@pytest.mark.parametrize("after", [True, False])
def test_a_killed_process_leaves_nothing_that_the_next_one_does_not_remove(
    context: Workspace, owner: object, call: str, after: bool
) -> None:
    """Killed before, or right after, each call that making one takes."""
    real = getattr(owner, call)

    def deadly(*arguments: object, **options: object) -> None:
        if after:
            real(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    with work_folder.create(context, "image", FILES):
        pass
    before = sorted(context.project.state.rglob("*"))

    def create() -> None:
        setattr(owner, call, deadly)
        with work_folder.create(context, "image", FILES):
            pass

    process = multiprocessing.get_context("fork").Process(target=create)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    work_folder.remove_stale(context)
    assert sorted(context.project.state.rglob("*")) == before


def test_one_that_another_process_took_for_stale_is_made_again(
    context: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its making and its locking anybody may remove it."""
    real = files.folder_locked
    taken: list[Path] = []

    def late(path: Path) -> object:
        if not taken:
            taken.append(path)
            path.rmdir()
        return real(path)

    monkeypatch.setattr("builder.building.work_folder.folder_locked", late)
    with work_folder.create(context, "image", FILES) as work:
        assert work.path not in taken
        assert (work.directory / "mods/a/run.sh").read_bytes() == b"true"


def test_that_of_a_running_process_stays(context: Workspace) -> None:
    with work_folder.create(context, "image", FILES) as work:
        work_folder.remove_stale(context)
        assert (work.directory / "plan.json").read_bytes() == b"{}"
    assert not list(context.project.work.iterdir())


def test_what_a_number_takes_has_to_be_writable(context: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    (context.project.builds / "org").mkdir(parents=True)
    work_folder.require_writable(context.project, "org/image")
    refused = {context.project.builds / "org"}
    monkeypatch.setattr(os, "access", lambda path, _: path not in refused)
    work_folder.require_writable(context.project, "other")
    with pytest.raises(PermissionError) as caught:
        work_folder.require_writable(context.project, "org/image")
    assert caught.value.filename == str(context.project.builds / "org")


def test_a_long_name_of_a_repository_fits_into_a_tag(context: Workspace) -> None:
    with work_folder.create(context, "a" * 200, FILES) as work:
        assert len(work.tag.removeprefix("builder-work:")) <= 128


def test_it_may_lie_on_another_disk(context: Workspace) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        context.project.state.symlink_to(folder)
        with work_folder.create(context, "image", FILES) as work:
            assert (work.directory / "plan.json").exists()
        assert not list(Path(folder, "work").iterdir())


def test_a_log_that_the_disk_does_not_take_is_named(context: Workspace, endpoint: Endpoint, tmp_path: Path) -> None:
    log = tmp_path / "logs/log"
    log.parent.mkdir()
    log.symlink_to("/dev/full")
    with pytest.raises(OSError) as caught:
        bake_run.run_buildx(endpoint, tmp_path, ["no-such-command"], os.environ, log, lambda _: None)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(log))

"""The cache of results: every change that could alter a plan makes the build plan again."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.building.request import BuildRequest
from builder.commands import build
from builder.engine.client import Endpoint
from tests import projects
from tests.workspaces import workspace

if TYPE_CHECKING:
    from collections.abc import Callable


ENGINE = Endpoint("unix:///nowhere.sock", ("docker-buildx",), "a test")
TEMPLATE = "mods/template/chat.jinja"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project as it is after a build, with a program of its own and a mod that is a link."""
    made = projects.make(tmp_path / "project")
    projects.write(made.lock, "version: 3\n")
    projects.write(made.root / "builder.yaml", "")
    projects.write(tmp_path / "elsewhere/run.sh", "touch /x\n")
    (made.mods / "linked").symlink_to(tmp_path / "elsewhere")
    (made.mods / "template/nowhere").symlink_to("gone")
    Path(os.fsdecode(os.fsencode(made.mods / "template") + b"/no UTF-8: \xff")).touch()
    projects.write(tmp_path / "program/plan.py", "ANSWER = 42\n")
    monkeypatch.setattr(build, "_PROGRAM", tmp_path / "program")
    return made


def ask(project: Project, *targets: str, platform: str | None = None, engine: Endpoint = ENGINE) -> build.CacheKey:
    key = build.cache_key(workspace(project, engine), BuildRequest(targets, platform=platform))
    assert key is not None
    return key


def edited_in_disguise(root: Path) -> None:
    """Other content of the same length, and the time of writing set back."""
    path = root / TEMPLATE
    before = path.stat()
    path.write_text("version two\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_mtime_ns, path.stat().st_size) == (before.st_mtime_ns, before.st_size)


def replaced_in_disguise(root: Path) -> None:
    path = root / TEMPLATE
    other = root.parent / "other"
    other.write_text("version two\n")
    shutil.copystat(path, other)
    other.replace(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "edited": edited_in_disguise,
    "replaced": replaced_in_disguise,
    "executable": lambda root: (root / TEMPLATE).chmod(0o755),
    "added": lambda root: (root / "mods/template/new").touch(),
    "removed": lambda root: (root / TEMPLATE).unlink(),
    "renamed": lambda root: (root / TEMPLATE).rename(root / "mods/template/other.jinja"),
    "behind a link": lambda root: (root.parent / "elsewhere/run.sh").write_text("touch /y\n"),
    "a link that leads somewhere now": lambda root: (root / "mods/template/gone").touch(),
    "a part of a template": lambda root: (root / "dockerfiles/_parts/new.j2").touch(),
    "a recipe": lambda root: (root / "recipes/chat.yaml").write_text("model: other\n"),
    "a recipe in the project's folder": lambda root: (root / "chat.yaml").touch(),
    "builder.yaml": lambda root: (root / "builder.yaml").write_text("evidence: {}\n"),
    "images.lock": lambda root: (root / "images.lock").write_text("version: 3\n"),
    "the program": lambda root: (root.parent / "program/plan.py").write_text("ANSWER = 43\n"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_anything_that_a_plan_is_made_from_is_noticed(
    project: Project, change: Callable[[Path], object]
) -> None:
    before = ask(project)
    time.sleep(0.02)  # a file system's clock may stand still for so long
    change(project.root)
    assert ask(project).files != before.files


def test_what_only_reads_or_writes_elsewhere_changes_nothing(project: Project) -> None:
    projects.write(project.state / "logs/a.log", "")
    projects.write(project.builds / "small/1/Dockerfile", "FROM scratch\n")
    before = ask(project)
    for path in (*project.mods.rglob("*.*"), project.lock):
        path.read_bytes()
    projects.write(project.state / "logs/b.log", "")
    projects.write(project.builds / "small/2/Dockerfile", "FROM scratch\n")
    projects.write(project.root.parent / "program/__pycache__/plan.cpython-311.pyc", "compiled")
    projects.write(project.root.parent / "program/__pycache__/plan.cpython-311.pyc", "compiled anew")
    compiled = ask(project)
    projects.write(project.root.parent / "program/__pycache__/plan.cpython-311.pyc", "once more")
    assert ask(project) == compiled
    assert compiled.path == before.path


def test_another_request_has_another_key(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {
        ask(project, "chat").files,
        ask(project, "chat", "chat").files,
        ask(project, "chat", platform="linux/arm64").files,
    }
    keys.add(ask(project, "chat", engine=Endpoint("unix:///another.sock", (), "a test")).files)
    monkeypatch.chdir(project.recipes)
    keys.add(ask(project, "chat").files)
    assert len(keys) == 5
    assert ask(project, "chat").files in keys


def test_any_number_of_requests_share_a_bounded_number_of_files(project: Project) -> None:
    keys = [ask(project, str(number)) for number in range(300)]
    assert len({key.files for key in keys}) == 300
    assert len({key.path for key in keys}) <= 256


def test_a_file_that_may_be_written_to_within_the_same_tick_settles_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited_in_disguise(project.root)
    changed = (project.root / TEMPLATE).stat().st_ctime_ns
    monkeypatch.setattr(time, "time_ns", lambda: changed + 20_000_000)
    assert not ask(project).settled
    monkeypatch.setattr(time, "time_ns", lambda: changed + 200_000_000)
    assert ask(project).settled


def test_times_in_whole_seconds_take_longer_to_settle(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    class Coarse:
        st_ctime_ns = (time.time_ns() // 10**9 - 1) * 10**9
        st_size = st_ino = st_dev = 1

    monkeypatch.setattr(build, "_file_state", lambda _path: Coarse)
    assert not ask(project).settled
    Coarse.st_ctime_ns -= 3 * 10**9
    assert ask(project).settled


def test_too_many_files_are_not_looked_at(project: Project) -> None:
    (project.mods / "template/a").symlink_to(project.mods)
    (project.mods / "template/b").symlink_to(project.mods)
    assert build.cache_key(workspace(project, ENGINE), BuildRequest(())) is None


@pytest.mark.parametrize("left", ["journal/small.json", "work/small-1/build/Dockerfile"])
def test_while_a_build_runs_or_was_killed_nothing_is_stored(project: Project, left: str) -> None:
    projects.write(project.state / left, "{}")
    assert build.cache_key(workspace(project, ENGINE), BuildRequest(())) is None


def test_without_a_lock_nothing_is_stored(project: Project) -> None:
    project.lock.unlink()
    assert build.cache_key(workspace(project, ENGINE), BuildRequest(())) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"files": 1}', "\0\1"])
def test_a_damaged_entry_counts_as_none(project: Project, content: str) -> None:
    question = ask(project)
    projects.write(question.path, content)
    assert build.cached_outcomes(workspace(project, ENGINE), question) is None

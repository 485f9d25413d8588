"""What is read of a build directory that anybody may have written: its own files, and nothing through them."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError
from builder.numbers import build_directory
from builder.plan import plan_model
from tests import projects
from tests.commands import kept
from tests.commands.kept import Kept
from tests.plan import shipped
from tests.plan.test_make import cpu_plan

if TYPE_CHECKING:
    from pathlib import Path

    from builder.lock.model import ImageName
    from builder.plan.plan_model import StagedFile


@pytest.fixture
def numbers(tmp_path: Path) -> Kept:
    return kept.start(tmp_path)


def read(numbers: Kept, name: ImageName) -> dict[str, StagedFile]:
    return build_directory.read_build_files(build_directory.read_build_directory(numbers.project, name))


@pytest.mark.parametrize(("name", "mode"), shipped.MODES)
def test_the_files_of_a_plan_are_read(numbers: Kept, name: str, mode: str) -> None:
    plan = shipped.plan(name, mode, "linux/arm64")
    number = numbers.add(plan)
    assert read(numbers, number) == plan.files
    assert list(build_directory.strays(build_directory.read_build_directory(numbers.project, number))) == []


def test_what_is_no_part_of_it_stays_outside(numbers: Kept) -> None:
    plan = cpu_plan()
    name = numbers.add(plan)
    folder = numbers.folder(name)
    paths = (".git/config", ".dockerignore", "Dockerfile~", "docker-bake.override.hcl", "mods/none/run.sh", "a/b/c")
    for path in paths:
        projects.write(folder / path, "x\n")
    (folder / "Dockerfile").chmod(0o755)
    assert read(numbers, name) == plan.files
    assert sorted(build_directory.strays(build_directory.read_build_directory(numbers.project, name))) == sorted(paths)


@pytest.mark.parametrize("place", ["Dockerfile", "python/packages.txt", "notes", "mods/x", "python", "mods"])
@pytest.mark.parametrize("kind", ["link", "link to a folder", "pipe", "socket"])
def test_what_leads_elsewhere_is_refused(numbers: Kept, place: str, kind: str) -> None:
    name = numbers.add(cpu_plan())
    path = numbers.folder(name) / place
    if path.exists():
        path.rename(numbers.project.root / "aside")
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        descriptor = os.open(path.parent, os.O_PATH)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{descriptor}/{path.name}")
        os.close(descriptor)
    else:
        path.symlink_to("/etc" if kind == "link to a folder" else "/etc/hostname")
    with pytest.raises(FileProblemsError) as raised:
        read(numbers, name)
    assert f"builds/{name.repository}/1/{place}:1:1: neither a file nor a folder" in raised.value.message


def test_a_file_that_is_gone_or_too_large_is_named(numbers: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    name = numbers.add(shipped.plan("flashqla", "git", "linux/arm64"))
    (numbers.folder(name) / "dflash/Dockerfile").unlink()
    with pytest.raises(FileProblemsError, match="1/dflash/Dockerfile:1:1: it is gone"):
        read(numbers, name)
    monkeypatch.setattr(plan_model, "LARGEST_FILE", 10)
    with pytest.raises(FileProblemsError, match="1/Dockerfile:1:1: cannot be read: larger than 10 bytes"):
        read(numbers, name)

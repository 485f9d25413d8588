"""The power is cut in the moment in which a command says that it is done: what it recorded is on the disk, whole.

The project lies on a file system of its own, whose disk is copied at that moment, without what the kernel has not
written yet. It writes nothing by itself in that time, and nothing but what it is told to (``noauto_da_alloc``).
"""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.engine import images
from builder.engine.client import Endpoint
from tests import program, projects, shared
from tests.conftest import command, remove_all

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = [pytest.mark.engine, pytest.mark.full]

LATE = "data=writeback,noauto_da_alloc,commit=600"


@contextmanager
def mounted(disk: Path, place: Path, options: str) -> Iterator[Path]:
    place.mkdir()
    subprocess.run(["mount", "-o", f"loop,{options}", disk, place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


class Machine:
    """Two projects on one disk, and what is on it when the power is cut."""

    def __init__(self, disk: Path, root: Path) -> None:
        self._disk = disk
        self._root = root
        self.cuts = 0

    def run(self, project: Project, *arguments: str) -> None:
        """Runs a command to its end, and compares what is left after a power cut with what was there."""
        done = program.run(command(project, *arguments))
        copy = self._disk.with_name(f"cut-{self.cuts}")
        subprocess.run(["cp", "--sparse=always", self._disk, copy], check=True)
        assert done.returncode == 0, done.stderr
        self.cuts += 1
        # Replays the file system's journal, as the next start of the machine does, and finds nothing else to mend.
        assert subprocess.run(["e2fsck", "-p", copy], capture_output=True).returncode == 0
        assert subprocess.run(["e2fsck", "-fn", copy], capture_output=True).returncode == 0
        with mounted(copy, copy.with_name(f"{copy.name}-files"), "ro") as after:
            left = contents(Project(after / project.root.relative_to(self._root)))
            assert left == contents(project), f"after `builder {' '.join(arguments)}`"
        copy.unlink()


def contents(project: Project) -> dict[str, bytes]:
    """What numbers stand on: images.lock, the build directories, vendored patches. An entry of the journal that is done
    may come back: it is done once more."""
    folders = [project.builds, *project.dockerfiles.glob("*/pulls")]
    files = [project.lock, *(path for folder in folders for path in folder.rglob("*"))]
    return {str(path.relative_to(project.root)): path.read_bytes() for path in files if path.is_file()}


def test_what_is_recorded_is_on_the_disk(tmp_path: Path, endpoint: Endpoint) -> None:
    names = [shared.unique_name() for _ in range(2)]
    disk = tmp_path / "disk"
    with disk.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", disk], check=True)
    try:
        with mounted(disk, tmp_path / "files", LATE) as root:
            project, other = projects.make(root / "one", names[0]), projects.make(root / "two", names[0])
            projects.with_own_steps(project, names[0])
            subprocess.run(["sync", "-f", root], check=True)
            machine = Machine(disk, root)
            machine.run(project, "build", "chat")
            projects.write(project.mods / "template/chat.jinja", "version two\n")
            machine.run(project, "build", "chat")
            machine.run(project, "rollback", "chat")
            machine.run(project, "keep", f"{names[0]}:1")
            images.tag_image(endpoint, f"{names[0]}:1", f"{names[1]}:mine")
            machine.run(project, "adopt", f"{names[1]}:mine")
            machine.run(project, "export-image", f"{names[0]}:2", str(tmp_path / "archive"))
            machine.run(other, "import-image", str(tmp_path / "archive"))
            images.remove_image(endpoint, f"{names[0]}:2")
            machine.run(project, "rebuild", f"{names[0]}:2")
            assert machine.cuts == 8
    finally:
        for name in names:
            remove_all(endpoint, name)

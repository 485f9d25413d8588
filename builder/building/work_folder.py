"""A build in progress: its folder below ``.builder/work/``, and cleaning up after one that was killed.

The folder is locked by the process that builds. A folder that nobody holds is what a killed build left: its temporary
tag, its containers and the folder go.
"""

from __future__ import annotations

import secrets
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.engine import containers, images
from builder.numbered import images_lock
from builder.storage.file_lock import folder_locked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from builder.engine.client.endpoint import Endpoint
    from builder.plan.model import StagedFile
    from builder.workspace import Workspace

LABEL = "builder.work"


@dataclass(frozen=True)
class Work:
    """One build in progress. ``directory`` becomes its build directory, ``tag`` names its image until it has one."""

    name: str
    folder: Path

    @property
    def directory(self) -> Path:
        return self.folder / "build"

    @property
    def wheels(self) -> Path:
        return self.folder / "wheels"

    @property
    def tag(self) -> str:
        return f"builder-work:{self.name}"

    @property
    def also(self) -> Path:
        """A file that names a further tag which goes when this does."""
        return self.folder / "also"

    @property
    def labels(self) -> dict[str, str]:
        return {LABEL: self.name}


@contextmanager
def begin(workspace: Workspace, repository: str, files: Mapping[str, StagedFile]) -> Iterator[Work]:
    """A new work folder with the build directory's ``files`` written into it. All of it, the image's temporary tag
    included, is gone when the block ends."""
    workspace.project.work.mkdir(parents=True, exist_ok=True)
    name = f"{repository.replace('/', '_')}-{secrets.token_hex(6)}"
    work = Work(name, workspace.project.work / name)
    fresh = workspace.project.state / f"new-{name}"
    fresh.mkdir()
    with folder_locked(fresh):
        # Held before it is seen: what nobody holds is taken for a killed build's.
        fresh.rename(work.folder)
        try:
            _write(work.directory, files)
            yield work
        finally:
            _discard(workspace.engine, work)


def recover(workspace: Workspace) -> None:
    """Finishes or undoes what killed processes left, for commands that may find that there is nothing else to do."""
    images_lock.recover(workspace)
    remove_stale(workspace)


def remove_stale(workspace: Workspace) -> None:
    """Removes what killed builds left behind. Builds that run now are left alone."""
    for folder in sorted(workspace.project.work.glob("*")):
        try:
            with folder_locked(folder):
                _discard(workspace.engine, Work(folder.name, folder))
        except (BlockingIOError, FileNotFoundError):
            continue


def _write(directory: Path, files: Mapping[str, StagedFile]) -> None:
    for name, file in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(0o755 if file.executable else 0o644)


def _discard(endpoint: Endpoint, work: Work) -> None:
    containers.remove_labelled(endpoint, f"{LABEL}={work.name}")
    images.remove(endpoint, work.tag)
    if work.also.exists():
        images.remove_extra_tag(endpoint, work.also.read_text(encoding="utf-8"))
    shutil.rmtree(work.folder, ignore_errors=True)

"""Folders of builds and proofs in progress, below ``.builder/work/``, and the removal of those that killed ones left.

A folder is locked by the process that works in it. One that is not locked is stale: it is removed together with its
temporary tag and its containers."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from builder.base.files import folder_locked, nearest_existing, read_plain_file, write_atomically, write_plain_file
from builder.base.project import below_project
from builder.base.values import dataclass
from builder.engine import containers, images
from builder.numbers import claims, images_lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from builder.base.project import Project
    from builder.engine.client import Endpoint
    from builder.numbers.workspace import Workspace
    from builder.plan.plan_model import StagedFile


LABEL = "builder.work"
_LONGEST_TAG = 1024
# Of an image that is adopted without a name.
_EXTRA_TAG = re.compile(r"[a-z0-9][^\s:]*:adopting-[0-9a-f]{12}")


@dataclass(frozen=True)
class WorkFolder:
    """The folder of one build in progress. ``directory`` becomes the build directory; ``tag`` is the image's for that
    time."""

    name: str
    path: Path
    project_id: str

    @property
    def directory(self) -> Path:
        return self.path / "build"

    @property
    def wheels(self) -> Path:
        return self.path / "wheels"

    @property
    def tag(self) -> str:
        return f"builder-work:{self.name}"

    @property
    def labels(self) -> dict[str, str]:
        return {LABEL: self.name, claims.PROJECT: self.project_id}

    @property
    def extra_tag(self) -> str | None:
        """Another tag that is removed together with the folder. Anybody may have written the file."""
        with suppress(OSError, UnicodeDecodeError):
            tag = read_plain_file(self.path / "also", _LONGEST_TAG).decode()
            return tag if _EXTRA_TAG.fullmatch(tag) else None
        return None

    def note_extra_tag(self, tag: str) -> None:
        """Notes a tag that is going to be made, whole or not at all: half a name may be that of another tag."""
        write_atomically(self.path / "also", tag.encode())


@contextmanager
def create(workspace: Workspace, repository: str, files: Mapping[str, StagedFile]) -> Iterator[WorkFolder]:
    """Creates a work folder with the build directory's ``files`` in it, for the duration of the block. All of it is
    removed at the end, the temporary tag of the image included."""
    with ExitStack() as locks:
        work = _create_locked(workspace.project, repository, locks)
        try:
            write_work_folder(work.directory, files)
            yield work
        finally:
            _remove(workspace.engine, workspace.project, work)


def _create_locked(project: Project, repository: str, locks: ExitStack) -> WorkFolder:
    """Creates a work folder that this process holds until ``locks`` ends. One that is not locked counts as stale, so
    that another process may remove it before this one has locked it: then it is not there, and another one is made."""
    own_id = claims.project_identity(project).id
    project.work.mkdir(parents=True, exist_ok=True)
    while True:
        # Docker's tags have at most 128 characters.
        name = f"{repository.replace('/', '_')[:100]}-{secrets.token_hex(6)}"
        work = WorkFolder(name, project.work / name, own_id)
        work.path.mkdir()
        try:
            locks.enter_context(folder_locked(work.path))
        except (BlockingIOError, FileNotFoundError):
            continue
        except OSError:
            with suppress(OSError):
                work.path.rmdir()
            raise
        if work.path.exists():
            return work


def require_writable(project: Project, repository: str) -> None:
    """Raises OSError if this user may not write what the next number takes, before a build that would be for
    nothing."""
    for folder in (project.root, project.journal, project.builds / repository):
        existing = nearest_existing(folder)
        if not os.access(existing, os.W_OK | os.X_OK):
            number = errno.EROFS if os.statvfs(existing).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(number, os.strerror(number), str(existing))


def recover(workspace: Workspace) -> None:
    """Finishes or undoes what killed processes left: in images.lock and its journal, and in work folders."""
    images_lock.recover_transaction(workspace)
    remove_stale(workspace)


def remove_stale(workspace: Workspace) -> None:
    """Removes the folders that killed builds left behind. Those of builds that are running are locked, and stay."""
    project = workspace.project
    own_id = claims.existing_identity(project)
    for folder in sorted(project.work.glob("*")):
        try:
            with folder_locked(folder):
                _remove(workspace.engine, project, WorkFolder(folder.name, folder, own_id))
        except (BlockingIOError, FileNotFoundError):
            continue
    if own_id:
        _remove_late_containers(workspace, own_id)


def _remove_late_containers(workspace: Workspace, own_id: str) -> None:
    """Removes the containers of this project whose work folder is gone: the engine makes a container that it was told
    to make, even if the process was killed meanwhile, and another has removed its folder by then."""
    for container in containers.container_listing(workspace.engine, f"{claims.PROJECT}={own_id}"):
        name = container["Labels"].get(LABEL)
        if name and not (workspace.project.work / name).exists():
            containers.remove_container(workspace.engine, container["Id"])


def write_work_folder(directory: Path, files: Mapping[str, StagedFile]) -> None:
    for name, file in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_plain_file(path, file.content)
        path.chmod(0o755 if file.executable else 0o644)


def _remove(endpoint: Endpoint, project: Project, work: WorkFolder) -> None:
    containers.remove_labelled(endpoint, f"{LABEL}={work.name}")
    images.remove_image(endpoint, work.tag)
    if work.extra_tag:
        images.remove_extra_tag(endpoint, work.extra_tag)
    shutil.rmtree(below_project(project.state, work.path), ignore_errors=True)

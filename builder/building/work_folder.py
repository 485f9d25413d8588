"""Folders of running builds and proofs, below ``.builder/work/``, and the removal of folders that killed processes
left.

A process locks the folder that it works in. A folder without a lock is stale: it is removed together with its temporary
tag and its containers."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base.files import folder_locked, nearest_existing, write_plain_file
from builder.base.project import Project, below_project
from builder.base.values import dataclass
from builder.engine import containers, images
from builder.numbers import claims, images_lock

if TYPE_CHECKING:
    from builder.engine.client import Endpoint
    from builder.numbers.workspace import Workspace
    from builder.plan.plan_model import StagedFile


LABEL = "builder.work"


@dataclass(frozen=True)
class WorkFolder:
    """The folder of one running build. ``directory`` becomes the build directory; ``tag`` is the temporary tag of the
    image."""

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


@contextmanager
def create(workspace: Workspace, repository: str, files: Mapping[str, StagedFile]) -> Iterator[WorkFolder]:
    """Creates a work folder with the ``files`` of the build directory for the block. At the end, the folder and the
    temporary tag of the image are removed."""
    with ExitStack() as locks:
        work = _create_locked(workspace.project, repository, locks)
        try:
            write_work_folder(work.directory, files)
            yield work
        finally:
            _remove(workspace.engine, workspace.project, work)


def _create_locked(project: Project, repository: str, locks: ExitStack) -> WorkFolder:
    """Creates a work folder that this process locks until ``locks`` ends. Before it is locked, another process may
    remove the folder as stale; then the function creates another folder."""
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
        if work.path.exists():
            return work


def require_writable(project: Project, repository: str) -> None:
    """Raises OSError if this user cannot write the files of the next number, before a build that would be useless."""
    for folder in (project.root, project.journal, project.builds / repository):
        existing = nearest_existing(folder)
        if not os.access(existing, os.W_OK | os.X_OK):
            number = errno.EROFS if os.statvfs(existing).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(number, os.strerror(number), str(existing))


def recover(workspace: Workspace) -> None:
    """Finishes or undoes the work of killed processes: in images.lock and its journal, and in work folders."""
    images_lock.recover_transaction(workspace)
    remove_stale(workspace)


def remove_stale(workspace: Workspace) -> None:
    """Removes the folders of killed builds. The folders of running builds are locked, and stay."""
    project = workspace.project
    own_id = claims.existing_identity(project)
    for folder in sorted(project.work.glob("*")):
        try:
            with folder_locked(folder):
                _remove(workspace.engine, project, WorkFolder(folder.name, folder, own_id))
        except (BlockingIOError, FileNotFoundError):
            continue
    # The engine may create a container after its process was killed, and after another process has removed the folder.
    for container in containers.container_listing(workspace.engine, f"{claims.PROJECT}={own_id}") if own_id else ():
        name = container["Labels"].get(LABEL)
        if name and not (project.work / name).exists():
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
    shutil.rmtree(below_project(project.state, work.path), ignore_errors=True)

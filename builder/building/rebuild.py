"""A numbered image built again from its build directory, whatever templates and mods say now."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.building import bake_run, work_folder
from builder.engine import images
from builder.errors import ImageStateError, LockError
from builder.events import Message
from builder.lock.file_problems import TAKE_BACK
from builder.numbered import adopted, bake_targets, build_directory, build_files
from builder.plan import layout
from builder.storage import regular_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.lock.model import ImageName, NumberedImage
    from builder.project import Project
    from builder.workspace import Workspace


# The name of a definition stands in options of buildx that have several fields.
_LARGEST_LAYERS = 1 << 20
_NO_NAME = re.compile('[,"]')


@dataclass(frozen=True)
class RebuiltImage:
    """A numbered image that was built again, under a temporary ``tag``; ``log`` is the file of the whole log,
    ``labels`` those of containers that work with it."""

    tag: str
    fingerprint: str
    details: images.ImageDetails
    log: str
    labels: Mapping[str, str]


def recorded_layers(project: Project, name: ImageName) -> tuple[str, ...]:
    """The layers of a number as it was built, lowest first; none where its build directory does not tell."""
    try:
        text = regular_file.read(build_directory.path_of(project, name) / layout.LAYERS, _LARGEST_LAYERS).decode()
    except (OSError, UnicodeDecodeError):
        return ()
    return tuple(text.split())


def require_built_here(name: ImageName, recorded: NumberedImage) -> None:
    """Raises ImageStateError for an adopted image, of which nothing here tells how it was built."""
    if recorded.adopted:
        raise ImageStateError(
            f"{name} was adopted from {recorded.adopted.image}: it was built elsewhere, and nothing here tells how",
            hint=adopted.way_back(name, recorded),
        )


@contextmanager
def rebuilt_image(
    workspace: Workspace,
    name: ImageName,
    recorded: NumberedImage,
    compilers: int | None = None,
) -> Iterator[RebuiltImage]:
    """Builds ``builds/REPOSITORY/NUMBER`` again; the image is removed at the end of the block, unless it was given
    another tag. Steps that BuildKit's cache still has are not repeated; ``compilers`` as for `bake_run.bake`. The
    caller checks once that the engine can build (`versions.require_supported`).

    Anybody may have written the directory: the targets are made anew from its plan, and baked from a copy of the files
    that a build has.

    Raises ImageStateError where the build directory is gone, or the image was built elsewhere; FileProblemsError where
    its plan or its bake file is damaged or not as this program writes it; BuildFailedError where a step fails.
    """
    require_built_here(name, recorded)
    if _NO_NAME.search(recorded.definition):
        raise LockError(f"images.lock: {name} cannot be of a definition called {recorded.definition!r}", hint=TAKE_BACK)
    path = build_directory.path_of(workspace.project, name)
    if not path.is_dir():
        raise ImageStateError(
            f"{workspace.project.relative(path)} is gone: {name} cannot be built again", hint=build_directory.HINT
        )
    directory = build_directory.read(workspace.project, name)
    targets = bake_targets.of(directory, recorded.platform)
    files = build_files.read(directory)
    work_folder.remove_stale(workspace)
    with work_folder.create(workspace, name.repository, files) as work:
        workspace.report(Message(f"building {name} again from {directory.shown}"))
        job = bake_run.BakeJob(work.directory, recorded.definition, targets, work)
        _, log = bake_run.bake(workspace, [job], compilers)
        details = images.inspect(workspace.engine, work.tag)
        if details is None:
            raise ImageStateError("the image was removed from the engine while it was being built")
        log_file = workspace.project.relative(log)
        yield RebuiltImage(work.tag, images.fingerprint(details), details, log_file, work.labels)

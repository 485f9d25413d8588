"""A numbered image built again from its build directory, whatever templates and mods say now."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.building import bake_run, work_folder
from builder.engine import images
from builder.errors import ImageStateError
from builder.events import Message
from builder.numbered import adopted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.lock.model import ImageName, NumberedImage
    from builder.workspace import Workspace


@dataclass(frozen=True)
class RebuiltImage:
    """A numbered image that was built again, under a temporary ``tag``; ``log`` is the file of the whole log."""

    tag: str
    fingerprint: str
    log: str


def require_built_here(name: ImageName, recorded: NumberedImage) -> None:
    """Raises ImageStateError for an adopted image, of which nothing here tells how it was built."""
    if recorded.adopted:
        raise ImageStateError(
            f"{name} was adopted from {recorded.adopted.image}: it was built elsewhere, and nothing here tells how",
            hint=adopted.way_back(name, recorded),
        )


@contextmanager
def rebuilt_image(
    workspace: Workspace, name: ImageName, recorded: NumberedImage, attest: Sequence[str] = ()
) -> Iterator[RebuiltImage]:
    """Builds ``builds/REPOSITORY/NUMBER`` again; the image is removed at the end of the block, unless it was given
    another tag. Steps that BuildKit's cache still has are not repeated; ``attest`` as for `bake_run.bake`. The caller
    checks once that the engine can build (`versions.require_supported`).

    Raises ImageStateError where the build directory is gone, or the image was built elsewhere; BuildFailedError where a
    step fails.
    """
    require_built_here(name, recorded)
    directory = workspace.project.build_directory(name.repository, name.number)
    if not (directory / "bake.json").is_file():
        raise ImageStateError(
            f"{workspace.project.relative(directory)} is gone: {name} cannot be built again",
            hint="it is committed with images.lock: take it back with git",
        )
    work_folder.remove_stale(workspace)
    with work_folder.create(workspace, name.repository, {}) as work:
        workspace.report(Message(f"building {name} again from {workspace.project.relative(directory)}"))
        job = bake_run.BakeJob(directory, recorded.definition, work)
        _, log = bake_run.bake(workspace, [job], attest)
        details = images.inspect(workspace.engine, work.tag)
        if details is None:
            raise ImageStateError("the image was removed from the engine while it was being built")
        yield RebuiltImage(work.tag, images.fingerprint(details), workspace.project.relative(log))

"""A numbered image built again from its build directory, whatever templates and mods say now."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.building import baking, work_folder
from builder.engine import images
from builder.errors import ImageStateError
from builder.events import Message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.lock.model import ImageName, NumberedImage
    from builder.workspace import Workspace


@dataclass(frozen=True)
class Again:
    """What came out, under a temporary ``tag``; ``log`` is the file of the whole log."""

    tag: str
    fingerprint: str
    log: str


@contextmanager
def built(
    workspace: Workspace, name: ImageName, recorded: NumberedImage, attest: Sequence[str] = ()
) -> Iterator[Again]:
    """Builds ``builds/REPOSITORY/NUMBER`` once more; the image is gone when the block ends, unless it was given another
    name. Steps that BuildKit's cache still has are not done again. ``attest`` as for `baking.bake`. That the engine can
    build (`versions.require_supported`) is asked by the caller, once.

    Raises ImageStateError where the build directory is gone, BuildFailedError where a step fails.
    """
    directory = workspace.project.build_directory(name.repository, name.number)
    if not (directory / "bake.json").is_file():
        raise ImageStateError(
            f"{workspace.project.relative(directory)} is gone: {name} cannot be built again",
            hint="it is committed with images.lock: take it back with git",
        )
    work_folder.remove_stale(workspace)
    with work_folder.begin(workspace, name.repository, {}) as place:
        workspace.report(Message(f"building {name} again from {workspace.project.relative(directory)}"))
        job = baking.Job(directory, recorded.definition, place)
        _, log = baking.bake(workspace, [job], attest)
        details = images.inspect(workspace.engine, place.tag)
        if details is None:
            raise ImageStateError("the image was removed from the engine while it was being built")
        yield Again(place.tag, images.fingerprint(details), workspace.project.relative(log))

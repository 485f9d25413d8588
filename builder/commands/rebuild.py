"""The rebuild command: builds a number again from its build directory, and compares the content."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.building import rebuild
from builder.engine import images
from builder.engine.client import versions
from builder.lock import reading
from builder.numbered import images_lock, names

if TYPE_CHECKING:
    from builder.lock.model import ImageName
    from builder.workspace import Workspace


@dataclass(frozen=True)
class Rebuilt:
    """The result of a rebuild. ``restored`` is true if the number was missing from the engine and has its tag again."""

    image: ImageName
    same: bool
    restored: bool
    fingerprint: str
    recorded: str
    seconds: float
    log: str


def run(workspace: Workspace, text: str) -> Rebuilt:
    """Builds the image called ``text`` from ``builds/REPOSITORY/NUMBER`` alone, not from the templates and mods.

    The number is tagged again only where it is missing and the content is the recorded one; otherwise the new image is
    removed. Raises ImageStateError where the build directory is gone, or the image was adopted; FileProblemsError where
    it is damaged, or would do what no build of this program does; BuildFailedError where a step fails.
    """
    started = time.monotonic()
    name, recorded = names.numbered(workspace.project, reading.of(workspace.project), text)
    rebuild.require_built_here(name, recorded)
    versions.require_supported(workspace.engine)
    with rebuild.rebuilt_image(workspace, name, recorded) as built:
        same = built.fingerprint == recorded.fingerprint
        restored = same and images.inspect(workspace.engine, str(name)) is None
        if restored:
            images_lock.restore(workspace, name, built.tag)
    seconds = time.monotonic() - started
    return Rebuilt(name, same, restored, built.fingerprint, recorded.fingerprint, seconds, built.log)

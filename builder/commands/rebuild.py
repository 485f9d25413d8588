"""The rebuild command: builds a number again from its build directory, and compares the content."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.building import rebuild
from builder.definitions import image_chain
from builder.engine import images
from builder.engine.client import versions
from builder.errors import UsageError
from builder.lock import reading
from builder.numbered import images_lock, names

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def run(workspace: Workspace, text: str, settings: Mapping[str, str] | None = None) -> Rebuilt:
    """Builds the image called ``text`` from ``builds/REPOSITORY/NUMBER`` alone, not from the templates and mods; of
    ``settings`` only the number of jobs is none of those that the number was built with.

    The number is tagged again only where it is missing and the content is the recorded one; otherwise the new image is
    removed. Raises ImageStateError where the build directory is gone, or the image was adopted; FileProblemsError where
    it is damaged, or would do what no build of this program does; BuildFailedError where a step fails.
    """
    started = time.monotonic()
    if other := [key for key in settings or {} if key != image_chain.BUILD_JOBS]:
        raise UsageError(f"`--set {other[0]}` would make another image", hint="`builder build` makes it")
    compilers = image_chain.build_jobs(settings or {})
    images_lock.recover(workspace)  # it may write nothing itself, where a killed one had tagged the number
    name, recorded = names.numbered(workspace.project, reading.of(workspace.project), text)
    rebuild.require_built_here(name, recorded)
    versions.require_supported(workspace.engine)
    with rebuild.rebuilt_image(workspace, name, recorded, compilers=compilers) as built:
        same = built.fingerprint == recorded.fingerprint
        restored = same and images.inspect(workspace.engine, str(name)) is None
        if restored:
            images_lock.restore(workspace, name, built.tag)
    seconds = time.monotonic() - started
    return Rebuilt(name, same, restored, built.fingerprint, recorded.fingerprint, seconds, built.log)

"""The rebuild verb: builds a number again from its build directory, and says whether the same content came out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.building import baking, work
from builder.engine import images, versions
from builder.errors import ImageStateError
from builder.events import WAITING, Said
from builder.lock import reading
from builder.numbered import names, record

if TYPE_CHECKING:
    from builder.engine.endpoint import Endpoint
    from builder.events import Report
    from builder.lock.model import ImageName
    from builder.project import Project


@dataclass(frozen=True)
class Rebuilt:
    """What came of it. ``restored`` where the number was missing from the engine and has its tag again."""

    image: ImageName
    same: bool
    restored: bool
    fingerprint: str
    recorded: str
    seconds: float
    log: str


def run(project: Project, endpoint: Endpoint, text: str, environ: Mapping[str, str], report: Report) -> Rebuilt:
    """Builds the image called ``text`` from ``builds/REPOSITORY/NUMBER`` alone, whatever templates and mods say now.

    The number is tagged again only where it is missing and the content is the recorded one; otherwise nothing of the
    new image stays. Raises ImageStateError where the build directory is gone, BuildFailedError where a step fails.
    """
    started = time.monotonic()
    name, recorded = names.numbered(project, reading.read(project.lock), text)
    directory = project.builds / name.repository / str(name.number)
    if not (directory / "bake.json").is_file():
        raise ImageStateError(
            f"{project.relative(directory)} is gone: {name} cannot be built again",
            hint="it is committed with images.lock: take it back with git",
        )
    versions.usable(endpoint)
    work.clean_up(project, endpoint)
    with work.begin(project, endpoint, name.repository, {}) as place:
        report(Said(f"building {name} again from {project.relative(directory)}"))
        job = baking.Job(directory, recorded.definition, place)
        _, log = baking.bake(project, endpoint, [job], environ, report)
        built = images.inspect(endpoint, place.tag)
        if built is None:
            raise ImageStateError("the image was removed from the engine while it was being built")
        fingerprint = images.fingerprint(built)
        same = fingerprint == recorded.fingerprint
        restored = same and images.inspect(endpoint, str(name)) is None
        if restored:
            record.restore(project, endpoint, name, place.tag, lambda: report(WAITING))
    seconds = time.monotonic() - started
    return Rebuilt(name, same, restored, fingerprint, recorded.fingerprint, seconds, project.relative(log))

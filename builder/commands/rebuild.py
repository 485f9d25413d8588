"""The rebuild verb: builds a number again from its build directory, and says whether the same content came out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.building import rebuild
from builder.engine import images
from builder.engine.client import versions
from builder.events import WAITING
from builder.lock import reading
from builder.numbered import names, record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.engine.client.endpoint import Endpoint
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
    name, recorded = names.numbered(project, reading.of(project), text)
    versions.usable(endpoint)
    with rebuild.built(project, endpoint, name, recorded, environ, report) as built:
        same = built.fingerprint == recorded.fingerprint
        restored = same and images.inspect(endpoint, str(name)) is None
        if restored:
            record.restore(project, endpoint, name, built.tag, lambda: report(WAITING))
    seconds = time.monotonic() - started
    return Rebuilt(name, same, restored, built.fingerprint, recorded.fingerprint, seconds, built.log)

"""One run of BuildKit over a build directory, with the person's certificates, package indexes, wheels and proxies."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from builder.engine import bake as engine_bake
from builder.sources import environment, wheels

if TYPE_CHECKING:
    from builder.engine.endpoint import Endpoint
    from builder.events import Report
    from builder.project import Project
    from builder.work import Work

_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def bake(
    project: Project,
    endpoint: Endpoint,
    directory: Path,
    definition: str,
    work: Work,
    environ: Mapping[str, str],
    report: Report,
) -> tuple[engine_bake.Baked, Path]:
    """Builds the build directory of an image of ``definition``; returns what came of it and the file of the whole log.

    Raises BuildFailedError where a step fails.
    """
    settings = environment.read(environ)
    log = _log_file(project, work)
    staged = wheels.stage(work.wheels, _own_index_hashes(directory, definition), settings)
    baked = engine_bake.bake(
        endpoint,
        directory,
        name=work.tag,
        secrets=_secrets(settings),
        contexts={"find-links": str(work.wheels)} if staged else {},
        # BuildKit knows the proxy arguments by name and keeps them out of the cache key and the image's history.
        args=dict(settings.proxies),
        log_path=log,
        on_event=report,
        environ={**environ, **_index_variables(settings)},
    )
    return baked, log


def _own_index_hashes(directory: Path, definition: str) -> dict[str, frozenset[str]]:
    """The hashes of the packages that an index of their own serves, by the folder that the template looks into: local
    wheels may take its place. The images below lie in folders of their names."""
    return {
        f"{definition if file.parent.parent == directory else file.parent.parent.name}-{file.stem}": frozenset(
            _HASH.findall(file.read_text(encoding="utf-8"))
        )
        for file in sorted(directory.glob("**/python/index-*.txt"))
    }


def _index_variables(settings: environment.Settings) -> dict[str, str]:
    extra = " ".join(settings.extra_index_urls)
    said = {"PIP_INDEX_URL": settings.index_url, "PIP_EXTRA_INDEX_URL": extra}
    return {name: value for name, value in said.items() if value}


def _secrets(settings: environment.Settings) -> tuple[engine_bake.Secret, ...]:
    """What the steps may use and must not keep; an index's address may hold a password."""
    files = [engine_bake.Secret("ca", src=str(settings.ca_file))] if settings.ca_file else []
    return (*files, *(engine_bake.Secret(name, env=name) for name in _index_variables(settings)))


def _log_file(project: Project, work: Work) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return project.state / "logs" / f"{stamp}-{work.name}.log"

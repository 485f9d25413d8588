"""The disk space that long builds took in this project's engine. The file may be deleted at any time."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from builder.engine import build_machine, cache_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from builder.project import Project

_FINISHED = "disk"
_BEGUN = "unfinished"
# In a shorter one, what else runs on the machine counts for more.
_LONG = 300.0


def finished(project: Project) -> Mapping[str, int]:
    """Returns the most bytes that a build took, by its kind."""
    return _section(project, _FINISHED)


def begun(project: Project) -> Mapping[str, int]:
    """Returns the bytes that builds took which then failed: what they have finished is there when they go on."""
    return _section(project, _BEGUN)


@contextmanager
def measured(project: Project, kind: str, data_root: str, images: int) -> Iterator[None]:
    """Measures the build of one image in the block, if it takes long; of several ``images`` at once it cannot be told
    which took what."""
    before, began = build_machine.free_disk(data_root), time.monotonic()
    succeeded = False
    try:
        yield
        succeeded = True
    finally:
        after = build_machine.free_disk(data_root)
        if images == 1 and before is not None and after is not None and time.monotonic() - began >= _LONG:
            remember(project, kind, max(before - after, 0), succeeded=succeeded)


def remember(project: Project, kind: str, taken: int, *, succeeded: bool) -> None:
    """Stores the bytes that a build took, together with those of failed ones before it."""
    total = taken + begun(project).get(kind, 0)
    rest = {name: size for name, size in begun(project).items() if name != kind}
    if succeeded:
        most = max(total, finished(project).get(kind, 0))
        cache_file.store(_file(project), _FINISHED, {**finished(project), kind: most})
        cache_file.store(_file(project), _BEGUN, rest)
    else:
        cache_file.store(_file(project), _BEGUN, {**rest, kind: total})


def _section(project: Project, name: str) -> dict[str, int]:
    stored = cache_file.load(_file(project)).get(name, {})
    return {kind: size for kind, size in stored.items() if isinstance(size, int)}


def _file(project: Project) -> Path:
    return project.state / "builddisk.json"

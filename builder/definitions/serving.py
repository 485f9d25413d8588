"""The settings of containers that serve from an image, ``serve:`` in image.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions.reading import read_checked

if TYPE_CHECKING:
    from builder.project import Project


@dataclass(frozen=True)
class ServeSettings:
    """The settings under ``serve:``: ``gpus`` (all or none), Docker's ``network`` and ``ipc`` modes, and the size of
    the shared memory where ``ipc`` is private. The defaults suit serving on a GPU."""

    gpus: str = "all"
    network: str = "host"
    ipc: str = "host"
    shm_size: str = "16g"


def of(project: Project, definition: str) -> ServeSettings:
    """The settings for images of ``definition``: its own, then those that it inherits from its parents. A definition
    that no longer exists adds none. Raises FileProblemsError for an invalid file."""
    settings: dict[str, str] = {}
    seen: set[str] = set()
    name: str | None = definition
    while name and name not in seen:
        seen.add(name)
        path = project.dockerfiles / name / "image.yaml"
        if not path.is_file():
            break
        data = read_checked(path, project.relative(path), "image", project.root)
        settings = {**data.get("serve", {}), **settings}
        name = data.get("from")
    return ServeSettings(**settings)

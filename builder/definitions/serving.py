"""What an image definition says about the container that serves from its images (``serve:`` in image.yaml)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions.reading import read_checked

if TYPE_CHECKING:
    from builder.project import Project


@dataclass(frozen=True)
class ServeSettings:
    """``gpus`` all or none, Docker's ``network`` and ``ipc`` modes, and the size of the shared memory where ``ipc`` is
    private. What nobody says is as a GPU needs it."""

    gpus: str = "all"
    network: str = "host"
    ipc: str = "host"
    shm_size: str = "16g"


def of(project: Project, definition: str) -> ServeSettings:
    """How images of ``definition`` are served: what its file says, then those that it stands on. A definition that is
    gone says nothing. Raises FileProblemsError for a wrong file."""
    said: dict[str, str] = {}
    seen: set[str] = set()
    name: str | None = definition
    while name and name not in seen:
        seen.add(name)
        path = project.dockerfiles / name / "image.yaml"
        if not path.is_file():
            break
        data = read_checked(path, project.relative(path), "image")
        said = {**data.get("serve", {}), **said}
        name = data.get("from")
    return ServeSettings(**said)

"""The settings of containers that serve from an image: ``serve:`` in image.yaml, and its argument `keep_entrypoint`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.definitions.reading import read_checked

if TYPE_CHECKING:
    from builder.project import Project


# The argument of `_parts/on_base.j2` that leaves the entrypoint of the base in the image.
KEEP_ENTRYPOINT = "keep_entrypoint"


@dataclass(frozen=True)
class ServeSettings:
    """The settings under ``serve:``: ``gpus`` (all or none), Docker's ``network`` and ``ipc`` modes, and the size of
    the shared memory where ``ipc`` is private. The defaults suit serving on a GPU. ``keep_entrypoint`` is true where
    the image's own entrypoint runs the command."""

    gpus: str = "all"
    network: str = "host"
    ipc: str = "host"
    shm_size: str = "16g"
    keep_entrypoint: bool = False


def of(project: Project, definition: str) -> ServeSettings:
    """The settings for images of ``definition``: its own, then those that it inherits from its parents. A definition
    that no longer exists adds none. Raises FileProblemsError for an invalid file."""
    settings: dict[str, Any] = {}
    seen: set[str] = set()
    name: str | None = definition
    while name and name not in seen:
        seen.add(name)
        path = project.dockerfiles / name / "image.yaml"
        if not path.is_file():
            break
        data = read_checked(path, project.relative(path), "image", project.root)
        args = data.get("args", {})
        kept = {KEEP_ENTRYPOINT: bool(args[KEEP_ENTRYPOINT])} if KEEP_ENTRYPOINT in args else {}
        settings = {**data.get("serve", {}), **kept, **settings}
        name = data.get("from")
    return ServeSettings(**settings)

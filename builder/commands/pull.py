"""The pull command: gets a numbered image from the registry, by the digest that images.lock records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions import configuration
from builder.distribution import retrieval
from builder.errors import BuilderError
from builder.lock import reading
from builder.numbered import names
from builder.serving import image_selection

if TYPE_CHECKING:
    from builder.engine.registry.transfer import PulledLayers
    from builder.lock.model import ImageName, Lock
    from builder.project import Project
    from builder.workspace import Workspace


@dataclass(frozen=True)
class Pulled:
    """The image, and the layers that were lacking; None where it was here already."""

    image: ImageName
    layers: PulledLayers | None


def run(workspace: Workspace, text: str) -> Pulled:
    """Pulls the image called ``text`` (``IMAGE:N``), or the one that serves the recipe or model of that name.

    Raises UsageError where ``text`` names nothing or no registry is set, TransferError where the transfer fails.
    """
    lock = reading.of(workspace.project)
    name = _image_named(workspace.project, lock, text)
    if retrieval.is_present(workspace.engine, lock, name):
        return Pulled(name, None)
    address = configuration.load(workspace.project).required_registry()
    return Pulled(name, retrieval.pull(workspace, address, lock, name))


def _image_named(project: Project, lock: Lock, text: str) -> ImageName:
    try:
        return names.numbered(project, lock, text)[0]
    except BuilderError:
        if ":" in text:
            raise
    return image_selection.select(project, lock, text).image

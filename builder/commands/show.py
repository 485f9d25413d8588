"""The show command: the contents of one image, from images.lock and its build directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.lock import reading
from builder.numbered import names, plan_file, status

if TYPE_CHECKING:
    from pathlib import Path

    from builder.plan.model import Step
    from builder.workspace import Workspace


@dataclass(frozen=True)
class ShownImage:
    """An image. ``steps`` is empty where its build directory is gone."""

    row: status.ImageRow
    steps: tuple[Step, ...]
    directory: Path


def run(workspace: Workspace, text: str) -> ShownImage:
    """Reads what images.lock and the build directory tell of the image called ``text``. Raises UsageError where
    images.lock has no such image."""
    lock = reading.of(workspace.project)
    name, _ = names.numbered(workspace.project, lock, text)
    overview = status.overview(workspace, lock.only(name))
    directory = workspace.project.build_directory(name.repository, name.number)
    return ShownImage(overview.rows[0], plan_file.read_if_possible(directory) or (), directory)

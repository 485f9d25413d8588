"""The show command: the contents of one image, from images.lock and its build directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.lock import reading
from builder.numbered import adopted, names, plan_file, status

if TYPE_CHECKING:
    from pathlib import Path

    from builder.numbered.adopted import AdoptedContents
    from builder.plan.model import Step
    from builder.workspace import Workspace


@dataclass(frozen=True)
class ShownImage:
    """An image. ``steps`` is empty where its build directory is gone, and of an adopted image; ``adopted`` are the
    contents of such a one, None where they are gone."""

    row: status.ImageRow
    steps: tuple[Step, ...]
    adopted: AdoptedContents | None
    directory: Path

    @property
    def packages(self) -> dict[str, str]:
        """The version of each Python package, by name; empty where they are not known."""
        if self.adopted:
            return dict(self.adopted.packages)
        takes = {
            name: at
            for step in self.steps
            if step.name.rpartition(": ")[2] in {"base packages", "python packages"}
            for name, at in step.takes.items()
        }
        return {name: identity.partition(" ")[0] for name, identity in sorted(takes.items())}


def run(workspace: Workspace, text: str) -> ShownImage:
    """Reads what images.lock and the build directory tell of the image called ``text``. Raises UsageError where
    images.lock has no such image."""
    lock = reading.of(workspace.project)
    name, _ = names.numbered(workspace.project, lock, text)
    overview = status.overview(workspace, lock.only(name))
    directory = workspace.project.build_directory(name.repository, name.number)
    steps = plan_file.read_if_possible(directory) or ()
    return ShownImage(overview.rows[0], steps, adopted.read(directory), directory)

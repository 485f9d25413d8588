"""The matrix command: numbers, models and proofs, each with the run that tells how they go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import UsageError
from builder.evidence import matrix, overview
from builder.lock import reading
from builder.lock.model import ImageName
from builder.measuring import present_sets
from builder.numbered import names
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.evidence.matrix import Matrix
    from builder.evidence.overview import ImageEvidence
    from builder.lock.model import Lock
    from builder.workspace import Workspace


def run(workspace: Workspace, models: Sequence[str] = (), images: Sequence[str] = ()) -> Matrix:
    """Reads the table of all numbers and models, or of those that ``images`` (numbers, repositories, definitions) and
    ``models`` (or their recipes) name, from the files alone.

    Raises UsageError for a name of neither, LockError where images.lock cannot be read.
    """
    project = workspace.project
    lock = reading.of(project)
    chosen_images = _images(workspace, lock, images)
    evidence = overview.glance(project, lock, chosen_images, workspace.environment, present_sets.of(project))
    return matrix.of(chosen_images, _models(workspace, lock, evidence, models), evidence)


def page(table: Matrix) -> str:
    """The table as an HTML page."""
    from builder.reporting import collecting, html
    from builder.reporting.page import Disclosure, ReportPage

    rows = collecting.table_of(table, Disclosure(full=True))
    return html.render_table(ReportPage("", (), (), rows, (), full=True))


def _images(workspace: Workspace, lock: Lock, wanted: Sequence[str]) -> tuple[ImageName, ...]:
    """The numbers, the newest of each repository first."""
    every = [ImageName(repository, number) for repository, record in lock.images.items() for number in record.numbers]
    if wanted:
        chosen = {name for text in wanted for name in _named(workspace, lock, text)}
        every = [name for name in every if name in chosen]
    return tuple(sorted(every, key=lambda name: (name.repository, -name.number)))


def _named(workspace: Workspace, lock: Lock, text: str) -> list[ImageName]:
    repository = names.repository(workspace.project, lock, text)
    if repository in lock.images:
        return [ImageName(repository or "", number) for number in lock.images[repository or ""].numbers]
    return [names.numbered(workspace.project, lock, text)[0]]


def _models(
    workspace: Workspace, lock: Lock, evidence: Mapping[ImageName, ImageEvidence], wanted: Sequence[str]
) -> tuple[str, ...]:
    every = matrix.models_of(lock, evidence.values())
    if not wanted:
        return every
    return tuple(sorted({_model(workspace, text, every) for text in wanted}))


def _model(workspace: Workspace, text: str, every: Sequence[str]) -> str:
    """The model called ``text``, or that of the recipe called so."""
    if text in every:
        return text
    from builder.definitions.recipes import finding, recipe

    path = finding.find(workspace.project, text)
    model = recipe.load(workspace.project, path).model if path else None
    if model:
        return model
    raise UsageError(
        f"`{text}` is no model that an image was paired or run with, and no recipe",
        hint=did_you_mean(text, every) or f"there are: {', '.join(every) or 'none yet'}",
    )

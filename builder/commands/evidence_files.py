"""The evidence of a project as a table, and its state as one page or as a folder for a static host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import files
from builder.base.errors import ConflictError, UsageError
from builder.base.words import did_you_mean
from builder.commands import listing
from builder.definitions import recipe
from builder.evidence import matrix
from builder.lab.report import collecting, html
from builder.lock import lock_file
from builder.lock.model import ImageName
from builder.numbers import status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.lock.model import Lock
    from builder.numbers.workspace import Workspace


def matrix_of(workspace: Workspace, models: Sequence[str] = (), images: Sequence[str] = ()) -> matrix.Matrix:
    """Reads the table of all numbers and models, or of those that ``images`` (numbers, repositories, definitions) and
    ``models`` (or their recipes) name, from the files alone. Raises UsageError for a name of neither, LockError where
    images.lock cannot be read."""
    project = workspace.project
    lock = lock_file.read_project_lock(project)
    names = _images(workspace, lock, images)
    evidence = listing.present_evidence(project, lock, names, workspace.environment)
    every = matrix.models_of(lock, evidence.values())
    chosen = sorted({_model(workspace, text, every) for text in models}) if models else every
    return matrix.build_matrix(names, chosen, evidence)


def _images(workspace: Workspace, lock: Lock, wanted: Sequence[str]) -> tuple[ImageName, ...]:
    """The numbers, the newest of each repository first."""
    names = {ImageName(repository, number) for repository, record in lock.images.items() for number in record.numbers}
    chosen = set() if wanted else names
    for text in wanted:
        repository = status.named_repository(workspace.project, lock, text)
        if repository in lock.images:
            chosen |= {name for name in names if name.repository == repository}
        else:
            chosen.add(status.named_number(workspace.project, lock, text)[0])
    return tuple(sorted(names & chosen, key=lambda name: (name.repository, -name.number)))


def _model(workspace: Workspace, text: str, every: Sequence[str]) -> str:
    """The model called ``text``, or that of the recipe called so."""
    if text in every:
        return text
    path = recipe.find_recipe(workspace.project, text)
    model = recipe.load_recipe(workspace.project, path).model if path else None
    if model:
        return model
    hint = did_you_mean(text, every) or f"there are: {', '.join(every) or 'none yet'}"
    raise UsageError(f"`{text}` is neither a recipe nor a model that an image was paired or run with", hint=hint)


def write_report(workspace: Workspace, output: Path, *, publish: bool = False, full: bool = False) -> tuple[Path, ...]:
    """Writes the page into the file ``output``; to ``publish`` it, into that folder as index.html with report.json
    beside it. Only a ``full`` page has paths, names of machines and notes. Returns the files, the page first. Raises
    LockError where images.lock is lost or cannot be read, ConflictError for an output of the other kind."""
    if output.is_dir() and not publish:
        raise ConflictError(f"{output} is a folder", hint="name a file, such as report.html, or add `--publish`")
    if publish and output.exists() and not output.is_dir():
        raise ConflictError(f"{output} is a file", hint="`--publish` requires a folder")
    project, environ = workspace.project, workspace.environment
    page = collecting.collect_page(project, environ, workspace.report, listing.present_evidence, full=full)
    texts = {output / "index.html" if publish else output: html.render_page(page)}
    if publish:
        texts[output / "report.json"] = data(page)
    for path, text in texts.items():
        files.make_folder(path.parent)
        files.write_atomically(path, text.encode(errors="replace"), mode=0o644)
    return tuple(texts)


def data(page: collecting.Part) -> str:
    """The page as JSON."""
    content = {"schema_version": collecting.FORMAT, **vars(page)}
    return json.dumps(content, default=vars, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

"""The weights of a recipe that serves a checkpoint of the project: which revision, where it lies, and what it needs.

A pairing names it in its revision (``NAME@REVISION``), so that image and weights go forward and back together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.checkpoints import checkpoints_lock, record, result_place
from builder.definitions.recipes.container import HOME
from builder.errors import ConflictError, ImageStateError, UsageError
from builder.serving.image_selection import SelectedImage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.checkpoints.record import CheckpointName
    from builder.definitions.recipes.recipe import Recipe
    from builder.lock.model import Lock, NumberedImage
    from builder.project import Project
    from builder.serving.image_selection import ServedImage

_FOLDERS = "/checkpoints"
_NAME_OPTION = re.compile(r"--served[-_]model[-_]name\b")


@dataclass(frozen=True)
class ServedWeights:
    """A recipe whose ``{model}`` is the weights to serve, and the arguments ``extra`` that give them their name.
    ``checkpoint`` is None where it is the model's own weights after all, since the pairing is from before."""

    recipe: Recipe
    extra: tuple[str, ...]
    checkpoint: CheckpointName | None


def latest(project: Project, name: str) -> str | None:
    """The revision of a checkpoint that was made last, as a pairing names it; None where none was."""
    revision = checkpoints_lock.read(project).current(name)
    return str(record.CheckpointName(name, revision)) if revision else None


def paired_revision(lock: Lock, selection: ServedImage) -> str | None:
    """The revision that the pairing of the selected image names; None where there is no such pairing."""
    model = lock.models.get(selection.recipe.model or "")
    if model is None or not isinstance(selection, SelectedImage) or model.pairing.image != selection.image:
        return None
    return model.pairing.revision


def served(project: Project, environ: Mapping[str, str], lock: Lock, selection: ServedImage) -> ServedWeights | None:
    """The weights that the recipe of ``selection`` serves; None for a recipe that names no checkpoint.

    Those that the pairing names count: a checkpoint at a revision, or the model's own from before it had one; else the
    checkpoint that was made last. Raises ImageStateError where it is not here, ConflictError for an image that lacks a
    mod which it needs.
    """
    recipe = selection.recipe
    if recipe.checkpoint is None:
        return None
    paired = paired_revision(lock, selection)
    if paired and record.parse_name(paired) is None:
        return ServedWeights(replace(recipe, revision=paired), (), None)
    name = record.parse_name(paired or latest(project, recipe.checkpoint) or "")
    made = checkpoints_lock.read(project).find(name.name, name.revision) if name else None
    if name is None or made is None:
        what = name.short if name else f"the checkpoint {recipe.checkpoint}"
        raise ImageStateError(
            f"{what} was not made yet: {recipe.file} serves it",
            hint=f"`builder checkpoints build {name.name if name else recipe.checkpoint}`",
        )
    place = result_place.of(project, environ, name.name, made.folder)
    if not place.has(name.revision):
        raise ImageStateError(
            f"{name.short} is not on this machine: {place.folder(name.revision)} is missing",
            hint=f"`builder checkpoints build {name.name}` makes it, if its definition is still the same",
        )
    _require_mods(selection, name, made.mods)
    folder = place.folder(name.revision)
    inside, volumes = _inside(folder, name, is_cache=place.is_cache)
    named = _NAME_OPTION.search(recipe.command)
    changed = replace(
        recipe, defaults={**recipe.defaults, "model": inside}, volumes=(*recipe.volumes, *volumes), revision=None
    )
    return ServedWeights(changed, () if named else ("--served-model-name", made.model), name)


def warning(project: Project, lock: Lock, selection: ServedImage) -> str:
    """A warning where a newer revision was made than the one that is paired, or the pairing names none; empty
    otherwise."""
    recipe = selection.recipe
    paired = paired_revision(lock, selection)
    if recipe.checkpoint is None or paired is None:
        return ""
    newest = record.parse_name(latest(project, recipe.checkpoint) or "")
    name = record.parse_name(paired)
    if newest is None or name == newest:
        return ""
    now = f"paired with {name.short}" if name else "paired with its own weights"
    moves = f"`builder pair {recipe.model} {selection.name} --checkpoint {newest.name}` serves {newest.short}"
    return f"{recipe.model} is {now}: {moves}"


def missing(project: Project, environ: Mapping[str, str], lock: Lock, model: str) -> str:
    """A line that says so where the checkpoint that a model is paired with is no longer here; empty otherwise."""
    paired = lock.models.get(model)
    name = record.parse_name(paired.pairing.revision or "") if paired else None
    if name is None:
        return ""
    made = checkpoints_lock.read(project).find(name.name, name.revision)
    if made and result_place.of(project, environ, name.name, made.folder).has(name.revision):
        return ""
    return f"{model} is paired with {name.short}, which is not on this machine: it has to be made again"


def named(project: Project, text: str, model: str, image: NumberedImage) -> CheckpointName:
    """The checkpoint called ``text``, ``NAME`` or ``NAME@`` and the first digits of a revision. Raises UsageError for
    one that was not made, or is no form of ``model``; ConflictError for an image that lacks a mod that it needs."""
    name, _, start = text.partition("@")
    records = checkpoints_lock.read(project)
    revisions = records.checkpoints.get(name, {})
    matching = [each for each in revisions if each.startswith(start)] if start else [records.current(name) or ""]
    if len(matching) != 1 or matching[0] not in revisions:
        made = ", ".join(each[:12] for each in revisions) or "none"
        raise UsageError(f"checkpoints.lock has no `{text}`", hint=f"revisions of {name} that were made: {made}")
    revision = revisions[matching[0]]
    if revision.model != model:
        raise UsageError(f"{name} is a form of {revision.model}, and not of {model}")
    chosen = record.CheckpointName(name, matching[0])
    if lacking := [mod for mod in revision.mods if mod not in image.mods]:
        raise ConflictError(f"the image does not carry {', '.join(lacking)}, and {chosen.short} cannot be read without")
    return chosen


def _require_mods(selection: ServedImage, name: CheckpointName, mods: tuple[str, ...]) -> None:
    if not isinstance(selection, SelectedImage):
        return
    lacking = [mod for mod in mods if mod not in selection.record.mods]
    if lacking:
        raise ConflictError(
            f"{selection.image} does not carry {', '.join(lacking)}, and {name.short} cannot be read without",
            hint=f"`builder build {selection.recipe.file}` bakes what the checkpoint needs",
        )


def _inside(folder: Path, name: CheckpointName, *, is_cache: bool) -> tuple[str, tuple[str, ...]]:
    """The path of a result in the container, and the volume that it takes: the cache is mounted anyway."""
    if is_cache:
        model = folder.parent.parent.name
        return f"{HOME}/.cache/huggingface/hub/{model}/snapshots/{name.revision}", ()
    inside = f"{_FOLDERS}/{name.name}"
    return inside, (f"{folder}:{inside}:ro",)

"""A recipe can serve the weights of one of the project's own checkpoints, or those of a source in their place.

A pairing names the checkpoint in its revision (``NAME@REVISION``), so that image and weights move together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import files, hub_cache
from builder.base.errors import ConflictError, ImageStateError, UsageError
from builder.base.words import did_you_mean
from builder.definitions.container import HOME
from builder.lock import checkpoints_lock
from builder.serving.selection import SelectedImage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.base.project import Project
    from builder.definitions.checkpoint_definition import CheckpointSource
    from builder.definitions.recipe import Recipe
    from builder.lock.checkpoints_lock import CheckpointName, CheckpointRevision, RecordedSource
    from builder.lock.model import Lock, NumberedImage
    from builder.serving.selection import ServedImage


_NAME_OPTION = re.compile(r"--served[-_]model[-_]name\b")
# The folders in the container. The links of a snapshot lead to blobs beside it, so the whole folder of the model of a
# source is mounted.
_FOLDERS = "/checkpoints"
_SOURCE = "/checkpoint-source"


@dataclass(frozen=True)
class ServedWeights:
    """A recipe whose ``{model}`` is the weights to serve, and the arguments ``extra`` that give them their name.
    ``checkpoint`` and ``made`` are None where the pairing names the model's own weights."""

    recipe: Recipe
    extra: tuple[str, ...] = ()
    checkpoint: CheckpointName | None = None
    made: CheckpointRevision | None = None


def latest_weights(project: Project, name: str) -> str | None:
    """The revision of a checkpoint that was made last, as a pairing names it; None where none was."""
    revision = checkpoints_lock.read_checkpoints_lock(project).current(name)
    return str(checkpoints_lock.CheckpointName(name, revision)) if revision else None


def paired_revision(lock: Lock, selection: ServedImage) -> str | None:
    """The revision that the pairing of the selected image names; None where there is no such pairing."""
    model = lock.models.get(selection.recipe.model or "")
    if model is None or not isinstance(selection, SelectedImage) or model.pairing.image != selection.image:
        return None
    return model.pairing.revision


def served_weights(
    project: Project, environ: Mapping[str, str], lock: Lock, selection: ServedImage
) -> ServedWeights | None:
    """The weights that the recipe of ``selection`` serves: those that the pairing names, else the checkpoint that was
    made last; None for a recipe that names no checkpoint. Raises ImageStateError if it is not here, ConflictError for
    an image that lacks a mod which it needs."""
    recipe = selection.recipe
    if recipe.checkpoint is None:
        return None
    paired = paired_revision(lock, selection)
    if paired and checkpoints_lock.parse_name(paired) is None:
        return ServedWeights(replace(recipe, revision=paired))
    name = checkpoints_lock.parse_name(paired or latest_weights(project, recipe.checkpoint) or "")
    made = checkpoints_lock.read_checkpoints_lock(project).find(name.name, name.revision) if name else None
    if name is None or made is None:
        what = name.short if name else f"the checkpoint {recipe.checkpoint}"
        raise ImageStateError(
            f"{what} was not made yet: {recipe.file} serves it",
            hint=f"`builder checkpoints build {name.name if name else recipe.checkpoint}`",
        )
    if isinstance(selection, SelectedImage):
        hint = f"`builder build {recipe.file}` bakes what the checkpoint needs"
        _require_mods(selection.name, selection.record, name, made, hint)
    return _of_checkpoint(project, environ, recipe, name, made)


def _of_checkpoint(
    project: Project, environ: Mapping[str, str], recipe: Recipe, name: CheckpointName, made: CheckpointRevision
) -> ServedWeights:
    place = checkpoints_lock.result_place(project, environ, name.name, made.folder)
    folder = place.folder(name.revision)
    if not place.has(name.revision):
        raise ImageStateError(
            f"{name.short} is not on this machine: {folder} is missing",
            hint=f"`builder checkpoints build {name.name}` makes it, if its definition is still the same",
        )
    inside, volumes = f"{_FOLDERS}/{name.name}", [f"{folder}:{_FOLDERS}/{name.name}:ro"]
    if place.is_cache:  # which is mounted anyway
        inside, volumes = f"{HOME}/.cache/huggingface/hub/{place.root.name}/snapshots/{name.revision}", []
    is_named = _NAME_OPTION.search(recipe.command)
    extra = () if is_named else ("--served-model-name", made.model)
    return ServedWeights(_serving(recipe, inside, *volumes), extra, name, made)


def _serving(recipe: Recipe, model: str, *volumes: str) -> Recipe:
    """The recipe with what is mounted at ``model`` in place of its own."""
    defaults = {**recipe.defaults, "model": model}
    return replace(recipe, defaults=defaults, volumes=(*recipe.volumes, *volumes), revision=None)


def _require_mods(
    image: str, record: NumberedImage, name: CheckpointName, made: CheckpointRevision, hint: str = ""
) -> None:
    if lacking := [mod for mod in made.mods if mod not in record.mods]:
        message = f"{image} does not carry {', '.join(lacking)}, and {name.short} cannot be read without"
        raise ConflictError(message, hint=hint)


def weights_warning(project: Project, lock: Lock, selection: ServedImage) -> str:
    """A warning where a newer revision was made than the one that is paired; empty otherwise."""
    recipe = selection.recipe
    paired = paired_revision(lock, selection)
    if recipe.checkpoint is None or paired is None:
        return ""
    newest = checkpoints_lock.parse_name(latest_weights(project, recipe.checkpoint) or "")
    name = checkpoints_lock.parse_name(paired)
    if newest is None or name == newest:
        return ""
    now = f"paired with {name.short}" if name else "paired with its own weights"
    moves = f"`builder pair {recipe.model} {selection.name} --checkpoint {newest.name}` serves {newest.short}"
    return f"{recipe.model} is {now}: {moves}"


def missing_weights(project: Project, environ: Mapping[str, str], lock: Lock, model: str) -> str:
    """A line that says so where the checkpoint that a model is paired with is no longer here; empty otherwise."""
    paired = lock.models.get(model)
    name = checkpoints_lock.parse_name(paired.pairing.revision or "") if paired else None
    if name is None:
        return ""
    made = checkpoints_lock.read_checkpoints_lock(project).find(name.name, name.revision)
    if made and checkpoints_lock.result_place(project, environ, name.name, made.folder).has(name.revision):
        return ""
    return f"{model} is paired with {name.short}, which is not on this machine: it has to be made again"


def named_weights(project: Project, text: str, model: str, image: NumberedImage) -> CheckpointName:
    """The checkpoint called ``text``, ``NAME`` or ``NAME@`` and the first digits of a revision. Raises UsageError for
    one that was not made from ``model``, ConflictError for an image that lacks a mod that it needs."""
    name, _, start = text.partition("@")
    records = checkpoints_lock.read_checkpoints_lock(project)
    revisions = records.checkpoints.get(name, {})
    matching = [each for each in revisions if each.startswith(start)] if start else [records.current(name) or ""]
    if len(matching) != 1 or matching[0] not in revisions:
        made = ", ".join(each[:12] for each in revisions) or "none"
        raise UsageError(f"checkpoints.lock has no `{text}`", hint=f"revisions of {name} that were made: {made}")
    revision = revisions[matching[0]]
    if revision.model != model:
        raise UsageError(f"{name} is a form of {revision.model}, and not of {model}")
    chosen = checkpoints_lock.CheckpointName(name, matching[0])
    _require_mods("the image", image, chosen, revision)
    return chosen


# Other weights than the pairing's, served in their place: a checkpoint by its name, or a source that one was made from.


@dataclass(frozen=True)
class OtherWeights:
    """A recipe whose ``{model}`` is a checkpoint, or a source of ``checkpoint``, and the arguments ``extra`` that give
    it the model's name; ``requested`` is the checkpoint, or the source with the commit that was taken."""

    recipe: Recipe
    extra: tuple[str, ...]
    checkpoint: CheckpointName
    requested: str


def weights_of_checkpoint(
    project: Project, environ: Mapping[str, str], selection: SelectedImage, text: str
) -> OtherWeights:
    """The checkpoint called ``text``, whichever is paired. Raises what `named_weights` does, and ImageStateError if it
    is not on this machine."""
    recipe = selection.recipe
    name = named_weights(project, text, recipe.model or "", selection.record)
    made = checkpoints_lock.read_checkpoints_lock(project).checkpoints[name.name][name.revision]
    weights = _of_checkpoint(project, environ, recipe, name, made)
    return OtherWeights(replace(weights.recipe, checkpoint=None), weights.extra, name, name.short)


def source_weights_of(
    project: Project, environ: Mapping[str, str], lock: Lock, selection: ServedImage, source: str = ""
) -> OtherWeights:
    """The ``source`` of the checkpoint that the recipe of ``selection`` serves (if empty, the one of its first step) at
    the commit that the checkpoint was made from. Raises ImageStateError if it is not here as a whole."""
    from builder.definitions import checkpoint_definition
    from builder.definitions.checkpoint_definition import TakeStep

    served = served_weights(project, environ, lock, selection)
    if served is None or served.checkpoint is None or served.made is None:
        raise UsageError(
            f"{selection.recipe.file} serves no checkpoint of this project: there is no source to compare with",
            hint="its `model` has to be `checkpoint:NAME`; `builder checkpoints list` shows them",
        )
    definition = checkpoint_definition.load_checkpoint(project, served.checkpoint.name)
    name = source or next(step.source for step in definition.steps if isinstance(step, TakeStep))
    recorded = served.made.sources.get(name)
    if recorded is None or name not in definition.sources:
        suggestion = did_you_mean(name, definition.sources, code=True)
        raise UsageError(
            f"{definition.name} has no source `{name}`" + (f"; {suggestion}" if suggestion else ""),
            hint=f"there are: {', '.join(definition.sources)}",
        )
    written = definition.sources[name]
    requested, mounted, inside = str(written), checkpoints_lock.expanded(project, environ, written.folder or ""), ""
    if written.model and recorded.commit:
        requested, inside = f"{written.model}@{recorded.commit}", f"/snapshots/{recorded.commit}"
        mounted = hub_cache.folder(environ, written.model)
    _require_whole(Path(f"{mounted}{inside}"), written, recorded)
    recipe = _serving(replace(selection.recipe, checkpoint=None), f"{_SOURCE}{inside}", f"{mounted}:{_SOURCE}:ro")
    return OtherWeights(recipe, served.extra, served.checkpoint, requested)


def _require_whole(folder: Path, written: CheckpointSource, recorded: RecordedSource) -> None:
    """Raises ImageStateError where files are missing, since a build fetches only what it needs, or others by now."""
    from builder.sources.safetensors_files import LARGEST_INDEX, NAME, HeaderError, parse_index

    wanted = {"config.json", *recorded.files}
    if (folder / NAME).exists():
        try:
            wanted |= set(parse_index(files.read_plain_file((folder / NAME).resolve(), LARGEST_INDEX)).values())
        except HeaderError as error:
            raise ImageStateError(f"{folder / NAME}: {error}") from None
    if missing := sorted(name for name in wanted if not (folder / name).exists()):
        fetches = f"`hf download {written.model} --revision {recorded.commit}` fetches all of it"
        lacks = "1 file is" if len(missing) == 1 else f"{len(missing)} files are"
        raise ImageStateError(
            f"{written} is not on this machine as a whole: {lacks} missing, such as {missing[0]}",
            hint=fetches if written.model else f"they have to be in {folder}",
        )
    for name, file in recorded.files.items():
        if (folder / name).stat().st_size != file.size:
            raise ImageStateError(
                f"{folder / name} is not what the checkpoint was made from: it has another size",
                hint="`builder checkpoints build NAME --update` makes it from the source as it is now",
            )

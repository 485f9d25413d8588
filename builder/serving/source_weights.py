"""The weights of a source that a checkpoint was made from, served in the place of the checkpoint's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.checkpoints import checkpoints_lock, named_folder
from builder.checkpoints.planning import index
from builder.checkpoints.planning.header import HeaderError
from builder.definitions import checkpoint
from builder.definitions.checkpoint_steps import TakeStep
from builder.errors import ImageStateError, UsageError
from builder.serving import checkpoint_weights
from builder.storage import huggingface_cache, regular_file
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.checkpoints.record import CheckpointName, RecordedSource
    from builder.definitions.checkpoint import CheckpointDefinition, CheckpointSource
    from builder.definitions.recipes.recipe import Recipe
    from builder.lock.model import Lock
    from builder.project import Project
    from builder.serving.image_selection import ServedImage

# The links of a snapshot lead to blobs beside it, so the whole folder of the model is mounted.
_INSIDE = "/checkpoint-source"


@dataclass(frozen=True)
class SourceWeights:
    """A recipe whose ``{model}`` is a source of ``checkpoint``, and the arguments ``extra`` that give it the name of
    the model; ``requested`` is the source with the commit that was taken."""

    recipe: Recipe
    extra: tuple[str, ...]
    checkpoint: CheckpointName
    requested: str


def of(
    project: Project, environ: Mapping[str, str], lock: Lock, selection: ServedImage, source: str = ""
) -> SourceWeights:
    """The source called ``source`` of the checkpoint that the recipe of ``selection`` serves, or the one that its first
    step takes over, at the commit that the checkpoint was made from.

    Raises UsageError for a recipe that serves no checkpoint or a source that there is not, ImageStateError for one that
    is not here as a whole, and what `checkpoint_weights.served` does.
    """
    served = checkpoint_weights.served(project, environ, lock, selection)
    if served is None or served.checkpoint is None:
        raise UsageError(
            f"{selection.recipe.file} serves no checkpoint of this project: there is no source to compare with",
            hint="its `model` has to be `checkpoint:NAME`; `builder checkpoints list` shows them",
        )
    definition = checkpoint.load(project, served.checkpoint.name)
    name = _named(definition, source)
    made = checkpoints_lock.read(project).find(served.checkpoint.name, served.checkpoint.revision)
    recorded = made.sources.get(name) if made else None
    if recorded is None:
        raise UsageError(f"{served.checkpoint.short} was made without a source called `{name}`")
    written = definition.sources[name]
    requested = f"{written}" if recorded.commit is None else f"{written.model}@{recorded.commit}"
    mounted, inside = _places(project, environ, written, recorded)
    _require_whole(mounted, inside, written, recorded)
    model = f"{_INSIDE}/{inside}".rstrip("/")
    recipe = replace(
        selection.recipe,
        checkpoint=None,
        revision=None,
        defaults={**selection.recipe.defaults, "model": model},
        volumes=(*selection.recipe.volumes, f"{mounted}:{_INSIDE}:ro"),
    )
    return SourceWeights(recipe, served.extra, served.checkpoint, requested)


def _named(definition: CheckpointDefinition, source: str) -> str:
    if not source:
        return next(step.source for step in definition.steps if isinstance(step, TakeStep))
    if source in definition.sources:
        return source
    suggestion = did_you_mean(source, definition.sources, code=True)
    raise UsageError(
        f"{definition.name} has no source `{source}`" + (f"; {suggestion}" if suggestion else ""),
        hint=f"there are: {', '.join(definition.sources)}",
    )


def _places(
    project: Project, environ: Mapping[str, str], written: CheckpointSource, recorded: RecordedSource
) -> tuple[Path, str]:
    """The folder to mount, and the path of the weights in it."""
    if written.model and recorded.commit:
        return huggingface_cache.folder(environ, written.model), f"snapshots/{recorded.commit}"
    return named_folder.expanded(project, environ, written.folder or ""), ""


def _require_whole(mounted: Path, inside: str, written: CheckpointSource, recorded: RecordedSource) -> None:
    """Raises ImageStateError where files are missing, since a build fetches only what it needs, or others by now."""
    folder = mounted / inside
    wanted = {"config.json", *recorded.files}
    listing = folder / index.NAME
    if listing.exists():
        try:
            wanted |= set(index.parse(regular_file.read(listing.resolve(), index.LARGEST)).values())
        except HeaderError as error:
            raise ImageStateError(f"{listing}: {error}") from None
    missing = sorted(name for name in wanted if not (folder / name).exists())
    if missing:
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

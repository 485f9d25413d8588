"""The download command: gets a model and its draft model from the hub into the cache, and copies them to nodes."""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder import humanize
from builder.checkpoints import checkpoints_lock, result_place
from builder.definitions import configuration, target
from builder.definitions.recipes import command, finding
from builder.definitions.recipes import recipe as recipes
from builder.errors import SourceError, UsageError
from builder.events import Message, TransferProgress
from builder.lock import reading
from builder.serving import checkpoint_weights, image_selection, model_copy, model_revision
from builder.sources.huggingface import hub_models
from builder.storage import huggingface_cache

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from builder.definitions.recipes.recipe import Recipe
    from builder.events import Report
    from builder.lock.model import Lock
    from builder.project import Project
    from builder.serving.model_copy import Destination
    from builder.sources.huggingface.hub_models import Snapshot
    from builder.workspace import Workspace

# Left free: other programs write to this disk meanwhile.
_SPARE = 1_000_000_000


@dataclass(frozen=True)
class DownloadRequest:
    """A request to download. ``text`` names a recipe or a model; ``revision`` is a branch, tag or commit in place of
    the recorded one; the ``nodes`` get the models as well."""

    text: str
    revision: str | None = None
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RequestedModel:
    """A model at a branch, a tag or a commit."""

    model: str
    revision: str


@dataclass(frozen=True)
class Downloaded:
    """A model in the cache: its commit, its folder, its size and the part of it that was fetched, in bytes, and the
    whole time in seconds. ``size`` is 0 where only the cache was asked."""

    model: str
    commit: str
    folder: Path
    size: int
    fetched: int
    seconds: float


def run(workspace: Workspace, request: DownloadRequest) -> tuple[Downloaded, ...]:
    """Downloads what ``request`` names, fills in the revision of a pairing that has none, and copies to the nodes.

    Raises UsageError where it names no model, SourceError where the hub, the disk or a node refuses. All that can be
    checked beforehand is checked before anything is transferred.
    """
    config = configuration.load(workspace.project)
    destinations = [model_copy.destination(workspace.environment, config.node(name)) for name in request.nodes]
    if destinations:
        model_copy.require_rsync()
    lock = reading.of(workspace.project)
    if (recipe := _recipe(workspace.project, lock, request.text)) and recipe.checkpoint and not request.revision:
        return _checkpoint(workspace, lock, recipe, destinations)
    models = _requested_models(workspace.project, lock, request)
    snapshots = [hub_models.find_snapshot(workspace.environment, model.model, model.revision) for model in models]
    _require_room(workspace.environment, snapshots)
    downloads = tuple(_fetch(workspace.environment, snapshot, workspace.report) for snapshot in snapshots)
    for download in downloads:
        if recorded := model_revision.record(workspace, download.model):
            workspace.report(Message(f"images.lock: {download.model} is paired at revision {recorded[:7]}"))
        for destination in destinations:
            workspace.report(Message(f"copying {download.model} to {destination.node}"))
            model_copy.copy(workspace.environment, download.model, destination, workspace.report)
    return downloads


def _checkpoint(
    workspace: Workspace, lock: Lock, recipe: Recipe, destinations: Sequence[Destination]
) -> tuple[Downloaded, ...]:
    """The checkpoint that the recipe serves, which is made and never fetched; copied to the nodes."""
    selection = image_selection.select_any(workspace.project, lock, recipe.file)
    weights = checkpoint_weights.served(workspace.project, workspace.environment, lock, selection)
    if weights is None or weights.checkpoint is None:
        raise UsageError(
            f"{recipe.model} is paired with its own weights, which no recipe of it names",
            hint=f"`builder pair {recipe.model} {selection.name} --checkpoint {recipe.checkpoint}`",
        )
    name = weights.checkpoint
    made = checkpoints_lock.read(workspace.project).checkpoints[name.name][name.revision]
    place = result_place.of(workspace.project, workspace.environment, name.name, made.folder)
    if destinations and not place.is_cache:
        raise UsageError(
            f"{name.short} lies in {place.root}, and what is copied to nodes lies in the Hugging Face cache",
            hint="leave `output: {folder: …}` out of its definition and build it again",
        )
    for destination in destinations:
        workspace.report(Message(f"copying {name.short} to {destination.node}"))
        model_copy.copy(workspace.environment, result_place.model_id(name.name), destination, workspace.report)
    return (Downloaded(name.name, name.revision, place.folder(name.revision), made.size, 0, 0.0),)


def _requested_models(project: Project, lock: Lock, request: DownloadRequest) -> tuple[RequestedModel, ...]:
    """The model and its draft model. A revision that the user gives wins over the recipe's, and that over the one which
    the pairing recorded."""
    recipe = _recipe(project, lock, request.text)
    model = _model(recipe, request.text)
    if not huggingface_cache.is_id(model):
        raise UsageError(f"{model} is no model of the hub, but a folder: there is nothing to download")
    paired = lock.models[model].pairing.revision if model in lock.models else None
    in_recipe = recipe.revision if recipe else None
    models = [RequestedModel(model, request.revision or in_recipe or paired or huggingface_cache.MAIN)]
    if recipe and recipe.draft_model and huggingface_cache.is_id(recipe.draft_model):
        models.append(RequestedModel(recipe.draft_model, huggingface_cache.MAIN))
    return tuple(models)


def _recipe(project: Project, lock: Lock, text: str) -> Recipe | None:
    """The recipe that ``text`` names, or by which the model of that name was paired; None for any other model."""
    if text in lock.models:
        path = finding.recorded(project, lock.models[text].pairing.recipe)
        return recipes.load(project, path) if path else None
    try:
        named = target.find(project, text)
    except UsageError:
        if "/" in text and huggingface_cache.is_id(text):
            return None
        raise
    if named.recipe is None:
        raise UsageError(f"`{text}` is an image definition; a recipe or a model can be downloaded")
    return named.recipe


def _model(recipe: Recipe | None, text: str) -> str:
    if recipe is None:
        return text
    model = recipe.model or command.render(recipe, {}, ()).model
    if model is None:
        raise UsageError(f"{recipe.file} names no model", hint="write `model: ORG/NAME` into it")
    return model


def _require_room(environ: Mapping[str, str], snapshots: Sequence[Snapshot]) -> None:
    needed = sum(hub_models.missing_bytes(environ, snapshot) for snapshot in snapshots)
    hub = huggingface_cache.hub(environ)
    disk = next(folder for folder in (hub, *hub.parents) if folder.exists())
    free = shutil.disk_usage(disk).free
    if needed and needed + _SPARE > free:
        names = " and ".join(snapshot.model for snapshot in snapshots)
        raise SourceError(
            f"{names}: {humanize.size(needed)} to download, and {disk} has {humanize.size(free)} free",
            hint="make room, or name a folder on a larger disk in HF_HOME",
        )


def _fetch(environ: Mapping[str, str], snapshot: Snapshot, report: Report) -> Downloaded:
    started = time.monotonic()
    needed = hub_models.missing_bytes(environ, snapshot)
    current = snapshot.size - needed
    if needed:
        revision = f"{snapshot.model} at {snapshot.revision} ({snapshot.commit[:7]})"
        here = f", {humanize.size(current)} of it are here" if current else ""
        files = humanize.counted(len(snapshot.files), "file")
        report(Message(f"downloading {revision}: {files}, {humanize.size(snapshot.size)}{here}"))
    lock = threading.Lock()

    def on_progress(size: int) -> None:
        nonlocal current
        with lock:
            current += size
            report(TransferProgress(snapshot.model, current, snapshot.size))

    folder = hub_models.fetch(environ, snapshot, on_progress)
    seconds = time.monotonic() - started
    return Downloaded(snapshot.model, snapshot.commit, folder, snapshot.size, needed, seconds)

"""Commands that transfer numbered images and models between machines, registries and the hub."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import files, hub_cache, words
from builder.base.errors import BuilderError, SourceError, TransferError, UsageError
from builder.base.events import Message, NodeEvent, Report, TransferProgress
from builder.base.values import dataclass, replace
from builder.definitions import build_target, command, configuration, recipe
from builder.engine import client, transfer
from builder.lock import checkpoints_lock, lock_file
from builder.moving import machines, traveling_caches
from builder.numbers import adopted, claims, images_lock, named_registry, status
from builder.serving import model_weights, selection
from builder.serving.selection import select_any
from builder.sources.hub import Snapshot, fetch_from_hub, find_snapshot, missing_bytes

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.definitions.recipe import Recipe
    from builder.engine.client import Endpoint
    from builder.engine.transfer import PulledLayers
    from builder.lock.model import ImageName, Lock, NumberedImage
    from builder.moving.traveling_caches import TravelingCaches
    from builder.numbers.workspace import Workspace


# The push command: pushes numbered images to the registry, and records their digests in images.lock.


@dataclass(frozen=True)
class PushedImage:
    """An image in the registry, with its ``reference`` and ``digest``. ``already`` is true if the registry had it
    before, ``latest`` if it is also ``latest`` there."""

    image: ImageName
    reference: str
    digest: str
    already: bool
    latest: bool


def push_images(workspace: Workspace, texts: tuple[str, ...]) -> Iterator[PushedImage]:
    """Pushes the images called ``texts`` one by one; records and yields each after its push. Raises UsageError if an
    image is unknown or no registry is configured, and the errors of `named_registry.push`."""
    lock = lock_file.read_project_lock(workspace.project)
    requested = dict.fromkeys(status.named_number(workspace.project, lock, text)[0] for text in texts)
    target = named_registry.Registry(configuration.load_configuration(workspace.project).required_registry())
    for name in requested:
        yield push_image(workspace, target, lock, name)


def push_image(workspace: Workspace, target: named_registry.Registry, lock: Lock, name: ImageName) -> PushedImage:
    """Pushes an image with its compile caches, points ``latest`` at the current number, and records the digest."""
    recorded = lock.images[name.repository].numbers[name.number]
    digest, already = named_registry.push(workspace.engine, target, name, recorded, workspace.report)
    if recorded.digest != digest:
        with images_lock.transaction(workspace) as transaction:
            if image := transaction.lock.image(name):  # the number is still in images.lock
                transaction.commit(transaction.lock.with_image(name, replace(image, digest=digest)))
    latest = False
    # A push takes minutes, in which a rollback may move `latest`.
    repository = lock_file.read_project_lock(workspace.project).images.get(name.repository)
    if repository and repository.current == name.number:
        try:
            latest = named_registry.set_latest(workspace.engine, target, name, digest, workspace.report)
        except TransferError as error:
            if not named_registry.keeps_tags(error):
                raise
            reference = f"{target.repository(name)}:latest"
            workspace.report(Message(f"{reference} was left unchanged: tags are immutable in this registry"))
    traveling_caches.push_caches(workspace, target, name, recorded, digest)
    reference = f"{target.repository(name)}:{name.number}"
    return PushedImage(name, reference, digest, already, latest)


# The copy command: sends a numbered image to other machines. Each gets only the layers that it lacks.


@dataclass(frozen=True)
class Copied:
    """The image, and the result for each node: the copied layers, None if the node already had the image, or an error.
    ``latest`` is true if the image is current, so the nodes' ``latest`` tag moves to it."""

    image: ImageName
    latest: bool
    outcomes: dict[str, PulledLayers | BuilderError | None]


@dataclass(frozen=True)
class _CopyJob:
    workspace: Workspace
    lock: Lock
    name: ImageName
    recorded: NumberedImage
    current: bool
    project: claims.ProjectIdentity

    def report(self, node: str, event: object) -> None:
        self.workspace.report(NodeEvent(node, event))

    def tell(self, node: str, text: str) -> None:
        self.report(node, Message(text))


# Longer than the time limit of a request to an engine, which has its own error.
_ANSWER_SECONDS = 120.0


def copy_image(workspace: Workspace, text: str, nodes: Sequence[str]) -> Copied:
    """Copies the image called ``text`` to nodes of builder.yaml in parallel, through the registry of builder.yaml or a
    temporary registry on this machine. If one node fails, the others continue. Raises UsageError for an unknown image
    or node, and the errors of a push."""
    lock = lock_file.read_project_lock(workspace.project)
    name, recorded = status.named_number(workspace.project, lock, text)
    current = lock.images[name.repository].current == name.number
    job = _CopyJob(workspace, lock, name, recorded, current, claims.project_identity(workspace.project))
    engines = machines.engines(workspace.project, workspace.environment, nodes)
    address = configuration.load_configuration(workspace.project).registry
    present = machines.ask_machines(engines, partial(_has_already, job, address), _ANSWER_SECONDS, workspace.report)
    outcomes: dict[str, PulledLayers | BuilderError | None] = {
        node: answer if isinstance(answer, BuilderError) else None for node, answer in present.items()
    }
    if lacking := {node: engines[node] for node, answer in present.items() if answer is False}:
        with _source_registry(job, address) as (source, digest):
            outcomes |= machines.ask_machines(lacking, partial(_pull, job, source, digest))
    if caches := traveling_caches.find_traveling_caches(workspace.project, workspace.environment, name, recorded):
        have = {node: engine for node, engine in engines.items() if not isinstance(outcomes[node], BuilderError)}
        machines.ask_machines(have, partial(_send_caches, job, *caches))
    return Copied(name, current, outcomes)


def fetch_copy(workspace: Workspace, lock: Lock, name: ImageName, node: str) -> None:
    """Copies a number from a node to this engine, through a temporary registry on this machine. Only missing layers are
    transferred. Raises UsageError for an unknown node, and TransferError."""
    engine = client.of_node(
        workspace.environment, node, configuration.load_configuration(workspace.project).node(node).engine
    )
    recorded = lock.images[name.repository].numbers[name.number]
    adopted.require_present(engine, name, recorded)
    images_lock.claim_number(workspace, name, recorded.fingerprint)
    workspace.report(Message(f"copying {name} from {node}"))
    with transfer.serving(workspace.engine, workspace.environment, workspace.report) as port:
        with transfer.to_loopback(engine, port) as reached:
            source = named_registry.Registry(f"127.0.0.1:{reached}", private=True)
            digest = named_registry.push_for_copy(engine, source, name, workspace.report)
        here = named_registry.Registry(f"127.0.0.1:{port}", private=True)
        named_registry.pull(workspace.engine, here, name, recorded, digest, workspace.report)
    if recorded.pruned:
        images_lock.restore_tag(workspace, name, str(name))


def _has_already(job: _CopyJob, address: str | None, node: str, engine: Endpoint) -> bool:
    """True if the node has the image. Before anything is sent, raises BuilderError if the node does not answer or has a
    different image with this number. Without an ``address`` in builder.yaml, also raises it if the node cannot reach a
    temporary registry."""
    if adopted.is_present(engine, job.name, job.recorded):
        _point_latest(job, engine)
        job.tell(node, "already has the image")
        return True
    if not address:
        transfer.require_route(engine)
    return False


@contextmanager
def _source_registry(job: _CopyJob, address: str | None) -> Iterator[tuple[named_registry.Registry, str]]:
    workspace = job.workspace
    if address:
        source = named_registry.Registry(address)
        yield source, push_image(workspace, source, job.lock, job.name).digest
        return
    adopted.require_present(workspace.engine, job.name, job.recorded)
    with transfer.serving(workspace.engine, workspace.environment, workspace.report) as port:
        source = named_registry.Registry(f"127.0.0.1:{port}", private=True)
        workspace.report(Message(f"copying {job.name} through a temporary registry on this machine"))
        yield source, named_registry.push_for_copy(workspace.engine, source, job.name, workspace.report)


def _pull(job: _CopyJob, source: named_registry.Registry, digest: str, node: str, engine: Endpoint) -> PulledLayers:
    began = time.monotonic()
    claims.require_number(engine, job.project, job.name, job.recorded.fingerprint)
    to_source = transfer.to_loopback(engine, int(source.address.rpartition(":")[2])) if source.private else None
    with to_source or nullcontext() as port:
        reachable = named_registry.Registry(f"127.0.0.1:{port}", private=True) if port else source
        layers = named_registry.pull(engine, reachable, job.name, job.recorded, digest, partial(job.report, node))
    _point_latest(job, engine)
    job.tell(node, f"has the image now; {layers} copied in {words.duration_text(time.monotonic() - began)}")
    return layers


def _send_caches(job: _CopyJob, caches: TravelingCaches, folder: Path, node: str, engine: Endpoint) -> None:
    """Sends the compile caches to a node, into the same folder, where a start from this machine looks for them."""
    try:
        pieces = partial(traveling_caches.read_pieces, folder)
        why = traveling_caches.place(engine, str(job.name), str(folder), caches, pieces)
    except BuilderError as error:
        why = error.message
    job.tell(node, f"{caches.text}, {f'not taken: {why}' if why else 'sent'}")


def _point_latest(job: _CopyJob, engine: Endpoint) -> None:
    if not job.current:
        return
    latest = f"{job.name.repository}:latest at {engine.host}"
    report = job.workspace.report
    if owner := claims.owner_of_latest(engine, job.project.id, job.name.repository):
        report(Message(f"{latest} was left unchanged: it belongs to {owner}"))
    elif kept := claims.move_latest(engine, job.name):
        report(Message(f"{latest} was the only name of an image, now called {kept}"))


# The pull command: pulls a numbered image from the registry, by the digest in images.lock.


def pull_image(workspace: Workspace, text: str) -> tuple[ImageName, PulledLayers | None]:
    """Pulls the image called ``text`` (``IMAGE:N``), or the image that serves the recipe or model ``text``. Returns its
    name and the pulled layers; None instead of the layers if the engine had the image. Raises UsageError if ``text``
    names nothing or no registry is configured, TransferError if the transfer fails."""
    lock = lock_file.read_project_lock(workspace.project)
    try:
        name = status.named_number(workspace.project, lock, text)[0]
    except BuilderError:
        if ":" in text:
            raise
        name = selection.select_image(workspace.project, lock, text).image
    recorded = lock.images[name.repository].numbers[name.number]
    if adopted.is_present(workspace.engine, name, recorded):
        return name, None
    address = configuration.load_configuration(workspace.project).required_registry()
    layers = named_registry.pull_number(workspace, address, lock, name)
    traveling_caches.pull_caches(workspace, named_registry.Registry(address), name, recorded)
    return name, layers


# The download command: downloads a model and its draft model from the hub into the cache, and copies them to nodes.

# Kept free, because other programs also write to this disk.
_SPARE = 1_000_000_000


@dataclass(frozen=True)
class Downloaded:
    """A model in the cache: its commit, its folder, its size and the fetched part in bytes, and the total time in
    seconds. ``size`` is 0 if only the cache was read."""

    model: str
    commit: str
    folder: Path
    size: int
    fetched: int
    seconds: float


def download_model(
    workspace: Workspace, text: str, revision: str | None = None, nodes: Sequence[str] = ()
) -> tuple[Downloaded, ...]:
    """Downloads the recipe or model ``text`` at ``revision`` (a branch, tag or commit), or at the recorded revision.
    Records the revision in a pairing that has none, and copies to the nodes. Checks everything possible before any
    transfer. Raises UsageError if ``text`` names no model, SourceError if the hub, the disk or a node refuses."""
    config = configuration.load_configuration(workspace.project)
    destinations = [model_weights.copy_destination(workspace.environment, config.node(name)) for name in nodes]
    lock = lock_file.read_project_lock(workspace.project)
    recipe = _recipe(workspace.project, lock, text)
    if recipe and recipe.checkpoint and not revision:
        return _checkpoint(workspace, lock, recipe, destinations)
    models = _requested_models(lock, recipe, text, revision)
    snapshots = [find_snapshot(workspace.environment, model, wanted) for model, wanted in models]
    _require_room(workspace.environment, snapshots)
    downloads = tuple(_fetch(workspace.environment, snapshot, workspace.report) for snapshot in snapshots)
    for download in downloads:
        if recorded := model_weights.record_revision(workspace, download.model):
            workspace.report(Message(f"images.lock: {download.model} is paired at revision {recorded[:7]}"))
        for destination in destinations:
            workspace.report(Message(f"copying {download.model} to {destination.node}"))
            model_weights.copy_to_node(workspace.environment, download.model, destination, workspace.report)
    return downloads


def _checkpoint(
    workspace: Workspace, lock: Lock, recipe: Recipe, destinations: Sequence[model_weights.CopyDestination]
) -> tuple[Downloaded, ...]:
    """The checkpoint that the recipe serves, copied to the nodes. A checkpoint is made here, never downloaded."""
    selection = select_any(workspace.project, lock, recipe.file)
    weights = model_weights.served_weights(workspace.project, workspace.environment, lock, selection)
    if weights is None or weights.checkpoint is None:
        message = f"{recipe.model} is paired with its own weights, but none of its recipes names them"
        pairs = f"`builder pair {words.shell_word(recipe.model)} {selection.name} --checkpoint {recipe.checkpoint}`"
        hint = f"{pairs} pairs the model with the checkpoint"
        raise UsageError(message, hint=hint)
    name = weights.checkpoint
    made = checkpoints_lock.read_checkpoints_lock(workspace.project).checkpoints[name.name][name.revision]
    place = checkpoints_lock.result_place(workspace.project, workspace.environment, name.name, made.folder)
    if destinations and not place.is_cache:
        message = f"{name.short} is in {place.root}, but only models in the Hugging Face cache can be copied to nodes"
        hint = "remove `output: {folder: …}` from its definition, and build it again"
        raise UsageError(message, hint=hint)
    for destination in destinations:
        workspace.report(Message(f"copying {name.short} to {destination.node}"))
        model_weights.copy_to_node(
            workspace.environment, checkpoints_lock.model_id(name.name), destination, workspace.report
        )
    return (Downloaded(name.name, name.revision, place.folder(name.revision), made.size, 0, 0.0),)


def _requested_models(lock: Lock, recipe: Recipe | None, text: str, revision: str | None) -> list[tuple[str, str]]:
    """The model and its draft model with their revisions. The order is: the user's revision, the recipe's, the
    pairing's."""
    model = (recipe.model or command.render_command(recipe, {}, ()).model) if recipe else text
    if recipe and model is None:
        raise UsageError(f"{recipe.file} names no model", hint="add `model: ORG/NAME` to the recipe")
    if not model or not hub_cache.is_id(model):
        raise UsageError(f"{model} is a folder, not a model on Hugging Face: there is nothing to download")
    paired = lock.models[model].pairing.revision if model in lock.models else None
    models = [(model, revision or (recipe and recipe.revision) or paired or hub_cache.MAIN)]
    if recipe and recipe.draft_model and hub_cache.is_id(recipe.draft_model):
        models.append((recipe.draft_model, hub_cache.MAIN))
    return models


def _recipe(project: Project, lock: Lock, text: str) -> Recipe | None:
    """The recipe called ``text``, or the recipe of the pairing of the model ``text``; None for any other model."""
    if text in lock.models:
        path = recipe.recorded(project, lock.models[text].pairing.recipe)
        return recipe.load_recipe(project, path) if path else None
    try:
        named = build_target.find_target(project, text, lock.models)
    except UsageError:
        if "/" in text and hub_cache.is_id(text):
            return None
        raise
    if named.recipe is None:
        raise UsageError(f"`{text}` is an image definition; only a recipe or a model can be downloaded")
    return named.recipe


def _require_room(environ: Mapping[str, str], snapshots: Sequence[Snapshot]) -> None:
    needed = sum(missing_bytes(environ, snapshot) for snapshot in snapshots)
    disk = files.nearest_existing(hub_cache.hub(environ))
    free = shutil.disk_usage(disk).free
    if needed and needed + _SPARE > free:
        names = " and ".join(snapshot.model for snapshot in snapshots)
        raise SourceError(
            f"{names}: the download needs {words.size_text(needed)}, but {disk} has only {words.size_text(free)} free",
            hint="free some space, or set HF_HOME to a folder on a larger disk",
        )


def _fetch(environ: Mapping[str, str], snapshot: Snapshot, report: Report) -> Downloaded:
    started = time.monotonic()
    needed = missing_bytes(environ, snapshot)
    current = snapshot.size - needed
    if needed:
        revision = f"{snapshot.model} at {snapshot.revision} ({snapshot.commit[:7]})"
        here = f", {words.size_text(current)} of it already here" if current else ""
        files = words.counted(len(snapshot.files), "file")
        report(Message(f"downloading {revision}: {files}, {words.size_text(snapshot.size)}{here}"))
    lock = threading.Lock()

    def on_progress(size: int) -> None:
        nonlocal current
        with lock:
            current += size
            report(TransferProgress(snapshot.model, current, snapshot.size))

    folder = fetch_from_hub(environ, snapshot, on_progress)
    seconds = time.monotonic() - started
    return Downloaded(snapshot.model, snapshot.commit, folder, snapshot.size, needed, seconds)

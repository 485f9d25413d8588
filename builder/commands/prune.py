"""The prune command: plans which images are no longer needed and what their removal frees, then removes them.

The files that they compiled on this machine go with them, and so do the cached metadata of wheels that are no longer
pinned, and downloads that no mod names any more.

A number that is current, pinned or paired with a model stays, and so does every image that one of these was built on.
An image that a model was paired with before may go: its number stays recorded, and can be built again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder import timestamp
from builder.building import mod_downloads, work_folder
from builder.checkpoints import leftovers
from builder.engine import disk_usage, images
from builder.engine.buildkit import build_cache
from builder.errors import ConflictError
from builder.events import Message
from builder.lock import reading
from builder.lock.model import ImageName
from builder.numbered import claims, holdings, identity, images_lock, orphans, retention, status
from builder.pinning import wheel_cache
from builder.serving import compile_caches

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime, timedelta
    from pathlib import Path

    from builder.checkpoints.leftovers import RemovableCheckpoint
    from builder.engine.disk_usage import Layer
    from builder.engine.images import ImageDetails
    from builder.lock.model import Lock
    from builder.numbered.holdings import Holding
    from builder.numbered.identity import ProjectIdentity
    from builder.serving.compile_caches import CompileCache
    from builder.workspace import Workspace


@dataclass(frozen=True)
class RemovableImage:
    """An image to remove. ``frees`` is the uncompressed size, in bytes, of the layers that no other image has: nothing
    where another project in the engine has the number, too, which is its ``holder``."""

    name: ImageName
    built: str
    frees: int
    holder: str | None = None


@dataclass(frozen=True)
class RetainedImage:
    """An image that stays, with every reason for it."""

    name: ImageName
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class PrunePlan:
    """The plan of a prune. ``nameless`` are ids of images that builds of this project left behind, and names of images
    of others that nothing stands on any more; ``compiled`` are the compile caches of the images that go, and of those
    that went before; ``wheels`` are paths that take ``wheels_size`` bytes on disk, ``downloads`` files that
    take ``downloads_size``. ``layers`` is the uncompressed size, in bytes, of all layers that go, each counted once."""

    going: tuple[RemovableImage, ...]
    kept: tuple[RetainedImage, ...]
    nameless: tuple[str, ...]
    compiled: tuple[CompileCache, ...]
    wheels: tuple[Path, ...]
    wheels_size: int
    downloads: tuple[Path, ...]
    downloads_size: int
    layers: int
    checkpoints: tuple[RemovableCheckpoint, ...] = ()

    @property
    def frees(self) -> int:
        """The bytes that it frees in all."""
        of_checkpoints = sum(checkpoint.size for checkpoint in self.checkpoints)
        of_caches = sum(cache.size for cache in self.compiled) + self.wheels_size + self.downloads_size
        return self.layers + of_caches + of_checkpoints

    @property
    def is_empty(self) -> bool:
        """True if nothing would be removed."""
        return not (self.going or self.nameless or self.compiled or self.wheels or self.downloads or self.checkpoints)


@dataclass(frozen=True)
class Pruned:
    """The result of a prune. ``compiled`` are the numbers whose compiled files are gone; ``refused`` says why something
    stayed after all; ``cache`` is the size, in bytes, of BuildKit's own copies of the layers that it removed."""

    gone: tuple[ImageName, ...]
    compiled: tuple[ImageName, ...]
    refused: tuple[str, ...]
    cache: int


def plan(workspace: Workspace, keep: int, older_than: timedelta, now: datetime) -> PrunePlan:
    """Plans a prune in which, of each repository, the ``keep`` newest numbers stay and those built less than
    ``older_than`` ago. Removes nothing. Raises EngineError where no engine answers."""
    images_lock.recover(workspace)  # what a prune that was killed still had to do is no longer planned
    lock, own_id = reading.of(workspace.project), identity.existing(workspace.project)
    states, tags = status.states(workspace, lock)
    every = {image.id: image for image in disk_usage.all_images(workspace.engine)}
    others_have = holdings.of_others(workspace.engine, own_id)
    # A number that was pruned and is back (a container used it, or it was pulled) is present as well. One that was
    # removed since its state was read is not.
    numbered = {
        name: every[tags[str(name)]]
        for name, state in states.items()
        if state == "present" and tags[str(name)] in every and not _is_left(lock, others_have, name)
    }
    nameless = orphans.nameless(workspace.engine, lock, every, claims.contents_of_others(workspace.engine, own_id))
    ours = {*nameless, *(image.id for image in numbered.values())}
    others = {(image.tags or ("an image without a name",))[0]: image for id_, image in every.items() if id_ not in ours}
    engine = retention.EngineImages(numbered, others, disk_usage.containers_by_image(workspace.engine))
    reasons = retention.reasons(lock, engine, retention.RetentionPolicy(keep, older_than), now)
    going = {name: numbered[name] for name in sorted(reasons) if not reasons[name]}
    holders = {name: holdings.holder(others_have, name) for name in going}
    kept = [image for name, image in numbered.items() if reasons[name] or holders[name]]
    # Reading all build directories takes a while, and is for nothing where every image has a name.
    if any(orphans.is_untagged(image) for image in others.values()):
        nameless |= orphans.superseded_bases(workspace.engine, workspace.project, lock, kept)
    going_ids = {image.id for image in nameless.values()}
    staying = [*(image for image in others.values() if image.id not in going_ids), *kept]
    leaving = [*(image for name, image in going.items() if not holders[name]), *nameless.values()]
    sizes = disk_usage.layer_sizes(workspace.engine, leaving)
    went = (name for name, state in states.items() if state == "pruned")
    wheels, downloads = wheel_cache.stale(workspace.project, lock), mod_downloads.stale(workspace.project)
    return PrunePlan(
        going=tuple(
            RemovableImage(
                name,
                lock.images[name.repository].numbers[name.number].built,
                0 if holders[name] else _frees(sizes, [image], every.values()),
                str(holders[name]) if holders[name] else None,
            )
            for name, image in going.items()
        ),
        kept=tuple(RetainedImage(name, reasons[name]) for name in sorted(reasons) if reasons[name]),
        nameless=tuple(sorted(nameless)),
        compiled=compile_caches.find(workspace.engine, workspace.environment, sorted([*going, *went])),
        wheels=wheels,
        wheels_size=sum(compile_caches.disk_usage(path) for path in wheels),
        downloads=downloads,
        downloads_size=sum(compile_caches.disk_usage(path) for path in downloads),
        layers=_frees(sizes, leaving, staying),
        checkpoints=leftovers.find(workspace.project, workspace.environment, _paired_revisions(lock)),
    )


def _paired_revisions(lock: Lock) -> set[str]:
    """The revisions of all models' pairings: the present ones, and those that a rollback may return to."""
    pairings = (pairing for model in lock.models.values() for pairing in (model.pairing, *model.previous))
    return {pairing.revision for pairing in pairings if pairing.revision}


def _is_left(lock: Lock, others_have: Iterable[Holding], name: ImageName) -> bool:
    """True for a number that was pruned here before, and is here because another project has it."""
    image = lock.image(name)
    return image is not None and image.pruned is not None and holdings.holder(others_have, name) is not None


def _frees(sizes: dict[Layer, int], going: Iterable[ImageDetails], staying: Iterable[ImageDetails]) -> int:
    ids = {image.id for image in going}
    kept = {layer for image in staying if image.id not in ids for layer in disk_usage.layers(image)}
    return sum(sizes[layer] for layer in {layer for image in going for layer in disk_usage.layers(image)} - kept)


def run(workspace: Workspace, pruning: PrunePlan) -> Pruned:
    """Carries out a plan, one image at a time. Each is recorded as pruned before it is removed, so that the lock is
    right wherever this is interrupted. An image that changed since the plan was made stays, and is among the
    ``refused``."""
    work_folder.remove_stale(workspace)
    cached = build_cache.settled_records(workspace.engine)
    gone: list[ImageName] = []
    refused: list[str] = []
    stamp = timestamp.now()
    for going in pruning.going:
        workspace.report(Message(f"removing {going.name}"))
        try:
            if holder := _prune_number(workspace, going.name, stamp):
                refused.append(f"{going.name} is pruned here, and stays in the engine: {holder} has it, too")
            else:
                gone.append(going.name)
        except ConflictError as error:
            refused.append(error.message)
    for id_ in pruning.nameless:
        try:
            images.remove(workspace.engine, id_)
        except ConflictError as error:
            refused.append(error.message)
    compiled, stayed = _remove_compiled(workspace, pruning)
    wheel_cache.remove((*pruning.wheels, *pruning.downloads))
    _remove_checkpoints(workspace, pruning)
    return Pruned(tuple(gone), compiled, (*refused, *stayed), _prune_cache(workspace, cached))


def _remove_checkpoints(workspace: Workspace, pruning: PrunePlan) -> None:
    """Removes the checkpoints of the plan that were neither paired nor made again meanwhile."""
    wanted = _paired_revisions(reading.read(workspace.project.lock)) if pruning.checkpoints else set()
    removable = leftovers.find(workspace.project, workspace.environment, wanted) if pruning.checkpoints else ()
    for checkpoint in removable:
        if checkpoint in pruning.checkpoints:
            workspace.report(Message(f"removing {checkpoint.title}"))
            leftovers.remove(checkpoint)


def _prune_number(workspace: Workspace, name: ImageName, stamp: str) -> ProjectIdentity | None:
    """Records a number as pruned at ``stamp`` (RFC 3339 UTC) and removes its image from the engine, unless another
    project has it on record, which is returned. Its build directory stays. One that was removed meanwhile is gone.

    Raises ConflictError, with nothing changed, for a number that must stay or is in use by a container.
    """
    with images_lock.transaction(workspace) as transaction:
        before = transaction.lock
        image, details = before.image(name), images.inspect(workspace.engine, str(name))
        if image is None or (details is not None and images.fingerprint(details) != image.fingerprint):
            raise ConflictError(f"{name} is no longer what it was when this began: it was left alone")
        if image.pinned or before.images[name.repository].current == name.number or before.models_on(name):
            raise ConflictError(f"{name} was pinned, paired or made current meanwhile: it was left alone")
        holder = images_lock.holder(workspace, name)
        if holder:
            transaction.announce(ImageName(name.repository, before.images[name.repository].current or 0))
        else:
            transaction.announce(name, details.id if details else "")
        transaction.commit(before.with_image(name, replace(image, pruned=image.pruned or stamp)))
        if holder is None:
            try:
                images.remove(workspace.engine, str(name))
            except ConflictError:
                transaction.commit(before)
                raise
        return holder


def _remove_compiled(workspace: Workspace, pruning: PrunePlan) -> tuple[tuple[ImageName, ...], tuple[str, ...]]:
    """Removes compiled files; returns the numbers whose files are gone, and a line for each that could not be removed.
    The files of an image that is still present, or present again, stay."""
    lock = reading.read(workspace.project.lock)
    helper = next((str(kept.name) for kept in pruning.kept if images.inspect(workspace.engine, str(kept.name))), None)
    gone: list[ImageName] = []
    stayed: list[str] = []
    for cache in pruning.compiled:
        image = lock.image(cache.name)
        if image is None or not image.pruned or images.inspect(workspace.engine, str(cache.name)):
            continue
        if message := compile_caches.remove(workspace.engine, cache, helper):
            stayed.append(message)
        else:
            gone.append(cache.name)
    return tuple(gone), tuple(stayed)


def _prune_cache(workspace: Workspace, before: Iterable[build_cache.CacheRecord]) -> int:
    lock = reading.read(workspace.project.lock)
    names: dict[bool, list[ImageName]] = {True: [], False: []}
    for repository, record in lock.images.items():
        for number, image in record.numbers.items():
            names[image.pruned is not None].append(ImageName(repository, number))
    gone, kept = (orphans.dockerfile_text(workspace.project, names[pruned]) for pruned in (True, False))
    return build_cache.remove(
        workspace.engine, orphans.removable_records(before, build_cache.settled_records(workspace.engine), gone, kept)
    )

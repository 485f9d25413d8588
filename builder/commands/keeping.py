"""Commands that adopt existing images, and prune images that are no longer needed.

A pruned number stays on record. An image that is current, kept or paired is never pruned, nor are the images below it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING

from builder.base import files, words
from builder.base.errors import ConflictError, ImageContentsError, ImageStateError
from builder.base.events import Message
from builder.base.values import dataclass, replace
from builder.building import mod_choice, work_folder
from builder.engine import bake_run, images
from builder.engine.images import ImageDetails, repository
from builder.evidence import requirements
from builder.lab.checkpoints import conversion
from builder.lock import lock_file, merging
from builder.lock.model import Adoption, ImageName, Lock, NumberedImage, Version, shown_mods
from builder.numbers import adopted, build_directory, claims, images_lock, named_registry, status
from builder.pins import packages
from builder.plan import making, plan_model
from builder.plan.making import BASE_PACKAGES
from builder.plan.plan_model import StagedFile
from builder.serving import advice, compile_caches, model_weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from builder.base.project import Project
    from builder.engine.client import Endpoint
    from builder.engine.images import Layer
    from builder.numbers.workspace import Workspace
    from builder.serving.model_weights import PairingSource


# The adopt command: gives an image that was built elsewhere the next number of its repository. Nothing is built or
# copied: the number is another name for the same content.


@dataclass(frozen=True)
class AdoptedImage:
    """The number of an adopted image, and its record. ``already`` is true if the image already had the number.
    ``restored`` is true if the engine lacked the number, which got its tag back. ``models`` are newly paired with it.
    ``current`` is the current number of the repository. ``packages`` counts its Python packages. ``unknown`` explains
    why its software is unknown; empty if the software is known."""

    image: ImageName
    record: NumberedImage
    already: bool
    restored: bool
    models: tuple[str, ...]
    current: ImageName
    packages: int
    unknown: str


def adopt_image(
    workspace: Workspace,
    image: str,
    repository: str | None = None,
    models: tuple[str, ...] = (),
    *,
    promote: bool = True,
) -> AdoptedImage:
    """Gives ``image``, a name or an id in the engine, the next number of ``repository`` (None: its own repository).
    Pairs ``models`` with it, and makes it current if ``promote``. An image that already has a number in the repository
    keeps the number, and gets its tag back if the engine lacks the tag.

    Raises ImageStateError if the engine has no such image. Raises UsageError if the repository is unknown or its name
    is invalid. Raises ImageContentsError if the image should serve a model, but no vLLM was found in it."""
    work_folder.recover(workspace)
    lock = lock_file.read_project_lock(workspace.project)
    details = adopted.find_image_to_adopt(workspace.engine, image)
    repository, source = adopted.choose(workspace.project, image, repository, details)
    pairings = {
        model: model_weights.pairing_source(workspace.project, workspace.environment, lock, model, repository, source)
        for model in models
    }
    for model, origin in pairings.items():
        requirements.refuse_unproven(workspace, model, origin.recipe)
    if (name := _numbered(lock, repository, details)) is not None:
        return _again(workspace, name, details, pairings)
    with work_folder.create(workspace, repository, {}) as job, _named(workspace.engine, repository, details) as named:
        contents, sources = adopted.look_into(workspace, image, details, job.labels)
        _require_vllm(models, details, sources, contents.unknown)
        own_labels = making.read_labels(details.labels)  # labels of another project that built the image or its base
        record = NumberedImage(
            built=words.now(),
            definition="",
            platform=details.platform,
            fingerprint=images.fingerprint(details),
            input_hash="",
            size=images.disk_size(workspace.engine, named),
            versions={name: Version(package.version, package.commit) for name, package in sources.items()},
            mods=shown_mods(own_labels.mods if own_labels else {}),
            adopted=Adoption(source, adopted.in_registries(details, source)),
        )
        if reason := merging.refused(Lock().with_image(ImageName(repository, 1), record)):
            raise ImageStateError(f"{image} cannot be recorded: {reason}")
        files = {adopted.FILE: StagedFile(adopted.dump(contents))}
        with images_lock.transaction(workspace) as transaction:
            # Another process may have adopted the image in the meantime.
            if (name := _numbered(transaction.lock, repository, details)) is None:
                name = transaction.next_name(repository, record.fingerprint)
                own_part = _recorded(Lock(), name, record, pairings, promote=promote)
                files |= {file: StagedFile(content) for file, content in lock_file.record_files(own_part).items()}
                work_folder.write_work_folder(job.directory, files)
                transaction.place(name, details.id, job.directory, details.id, record.fingerprint)
                lock = _recorded(transaction.lock, name, record, pairings, promote=promote)
                transaction.commit(lock)
                result = _result(transaction.lock, name, contents, models)
            else:
                result = None
    if result is None:
        return _again(workspace, name, details, pairings)
    advice.report_advice(workspace.report, advice.of_adopted(workspace.project, name, result.record, models))
    return result


def _require_vllm(models: Sequence[str], details: ImageDetails, versions: Collection[str], unknown: str) -> None:
    """Raises ImageContentsError if models require vLLM, but neither the image's ``versions`` nor its labels contain
    vLLM. The labels count because this engine may not be able to read the image."""
    own_labels = making.read_labels(details.labels)
    if models and "vllm" not in {*versions, *(own_labels.versions if own_labels else ())}:
        message = f"{unknown}, so the image cannot be paired with {', '.join(models)}. Nothing was recorded"
        hint = "adopt it without `--model`; `builder pair MODEL IMAGE:N` can pair a model later"
        raise ImageContentsError(message, hint=hint)


def _numbered(lock: Lock, repository: str, details: ImageDetails) -> ImageName | None:
    fingerprint = images.fingerprint(details)
    numbers = lock.images[repository].numbers if repository in lock.images else {}
    same = [number for number, image in numbers.items() if image.fingerprint == fingerprint]
    return ImageName(repository, max(same)) if same else None


@contextmanager
def _named(endpoint: Endpoint, repository: str, details: ImageDetails) -> Iterator[str]:
    """Yields a name of the image. An image without a name gets one for the block, so that it is not deleted as a
    leftover after a kill. A tag that is the image's only name is never removed."""
    tag = images_lock.adopting_tag(repository, details.id)  # a killed process may have left it
    names = [name for name in details.tags if name != tag]
    if not names:
        images.tag_image(endpoint, details.id, tag)
    try:
        yield (names or [tag])[0]
    finally:
        images.remove_extra_tag(endpoint, tag)


def _recorded(
    lock: Lock, name: ImageName, record: NumberedImage, pairings: Mapping[str, PairingSource], *, promote: bool
) -> Lock:
    lock = lock.with_image(name, record)
    if promote or lock.images[name.repository].current is None:
        lock = lock.with_current(name)
    return _paired(lock, name, pairings, since=record.built)


def _paired(lock: Lock, name: ImageName, pairings: Mapping[str, PairingSource], since: str = "") -> Lock:
    for model, origin in pairings.items():
        pairing = model_weights.new_pairing(lock, model, name, origin)
        lock = lock.with_pairing(model, replace(pairing, since=since or pairing.since))
    return lock


def _again(
    workspace: Workspace, name: ImageName, details: ImageDetails, pairings: Mapping[str, PairingSource]
) -> AdoptedImage:
    """Gives a numbered image its tag again if the engine lacks the tag, and pairs it with models. Raises
    ImageStateError if the tag names different content."""
    with images_lock.transaction(workspace) as transaction:
        lock = transaction.lock
        record = lock.images[name.repository].numbers[name.number]
        _require_vllm(tuple(pairings), details, record.versions, f"{name} is recorded without vLLM")
        tagged = images.inspect_image(workspace.engine, str(name))
        if tagged is not None and images.fingerprint(tagged) != record.fingerprint:
            message = f"images.lock records this content as {name}, but that tag names another image in the engine"
            hint = f"to free the tag: `{adopted.frees(name)}`; then adopt again"
            raise ImageStateError(message, hint=hint)
        if tagged is None:
            transaction.announce(name)
            images_lock.claim_number(workspace, name, record.fingerprint)
            images.tag_image(workspace.engine, details.id, str(name))
        models = tuple(m for m in pairings if m not in lock.models or lock.models[m].pairing.image != name)
        transaction.commit(_paired(lock.with_image(name, replace(record, pruned=None)), name, pairings))
        lock = transaction.lock
    contents = adopted.read_adopted(workspace.project.build_directory(name.repository, name.number))
    result = _result(lock, name, contents or adopted.AdoptedContents(record.fingerprint), models)
    return replace(result, already=True, restored=tagged is None)


def _result(lock: Lock, name: ImageName, contents: adopted.AdoptedContents, models: tuple[str, ...]) -> AdoptedImage:
    record, repository = lock.images[name.repository].numbers[name.number], lock.images[name.repository]
    return AdoptedImage(
        image=name,
        record=record,
        already=False,
        restored=False,
        models=models,
        current=ImageName(name.repository, repository.current or name.number),
        packages=len(contents.packages),
        unknown=contents.unknown,
    )


# The prune command: plans which images are no longer needed and how much space they free, then removes them. It also
# removes their compile caches on this machine, cached metadata of wheels that are no longer pinned, and downloads that
# no mod names. A number that is current, kept or paired with a model stays, and so do the images below it. An image
# that was paired earlier may go: its number stays recorded and can be built again.


@dataclass(frozen=True)
class RemovableImage:
    """An image to remove. ``frees`` is the uncompressed size, in bytes, of the layers that no other image has. It is 0
    if the image has other ``names`` that stay, or if another project in the engine also has the number; ``holder`` is
    that project."""

    name: ImageName
    built: str
    frees: int
    holder: str | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class PrunePlan:
    """The plan of a prune. ``kept`` has every reason for each image that stays. ``nameless`` are ids of leftover images
    of this project's builds, and names of foreign base images that no image needs any more. ``compiled`` are the
    compile caches of images that go now or went earlier. ``fetched`` are fetched files that no pin or mod names any
    more, with their bytes on disk. ``layers`` is the uncompressed size, in bytes, of all layers that go, each counted
    once."""

    going: tuple[RemovableImage, ...]
    kept: dict[ImageName, tuple[str, ...]]
    nameless: tuple[str, ...]
    compiled: tuple[compile_caches.CompileCache, ...]
    fetched: dict[Path, int]
    layers: int
    checkpoints: tuple[conversion.RemovableCheckpoint, ...] = ()

    @property
    def frees(self) -> int:
        of_checkpoints = sum(checkpoint.size for checkpoint in self.checkpoints)
        of_caches = sum(cache.size for cache in self.compiled) + sum(self.fetched.values())
        return self.layers + of_caches + of_checkpoints

    @property
    def is_empty(self) -> bool:
        return not (self.going or self.nameless or self.compiled or self.fetched or self.checkpoints)


@dataclass(frozen=True)
class Pruned:
    """The result of a prune. ``compiled`` are the numbers whose compile caches were removed. ``refused`` has the
    reasons why something stayed. ``cache`` is the size, in bytes, of BuildKit's own copies of the removed layers."""

    gone: tuple[ImageName, ...]
    compiled: tuple[ImageName, ...]
    refused: tuple[str, ...]
    cache: int


def plan_prune(workspace: Workspace, keep: int, older_than: timedelta, now: datetime) -> PrunePlan:
    """Plans a prune. In each repository, the ``keep`` newest numbers stay, and numbers that are younger than
    ``older_than``. Removes nothing. Raises EngineError if no engine answers."""
    images_lock.recover_transaction(workspace)  # completes a killed prune: its remaining steps are not planned again
    lock, own_id = lock_file.read_project_lock(workspace.project), claims.existing_identity(workspace.project)
    states, tags = status.image_states(workspace, lock)
    every = {image.id: image for image in images.all_images(workspace.engine)}
    others_have = claims.of_others(workspace.engine, own_id)
    # Numbers that were pruned here, and numbers that stayed only because another project has them.
    pruned = [name for name in states if (record := lock.image(name)) and record.pruned]
    left = {name for name in pruned if name in others_have}
    # A pruned number may be present again, because a container used it or it was pulled. An image may also have been
    # removed after its state was read.
    numbered = {
        name: every[tags[str(name)]]
        for name, state in states.items()
        if state == "present" and tags[str(name)] in every and name not in left
    }
    nameless = nameless_images(workspace.engine, lock, every, claims.contents_of_others(workspace.engine, own_id))
    ours = {*nameless, *(image.id for image in numbered.values())}
    others = {(image.tags or ("an image without a name",))[0]: image for id_, image in every.items() if id_ not in ours}
    engine = EngineImages(numbered, others, images.containers_by_image(workspace.engine))
    reasons = retention_reasons(lock, engine, keep, older_than, now)
    going = {name: numbered[name] for name in sorted(reasons) if not reasons[name]}
    holders = {name: others_have.get(name) for name in going}
    # An image also stays if it has another name: then only the tag of the number goes.
    freed = {str(name) for name in going if not holders[name]}
    names = {
        name: {*image.tags}.difference(freed, named_registry.left_by_push(name, image.tags))
        for name, image in going.items()
    }
    leaving = {name: image for name, image in going.items() if not names[name]}
    kept = [image for name, image in numbered.items() if name not in leaving]
    # Reading all build directories is slow, and is not needed if every image has a name.
    if any(is_untagged(image) for image in others.values()):
        nameless |= superseded_bases(workspace.engine, workspace.project, lock, kept)
    going_ids = {image.id for image in nameless.values()}
    staying = [*(image for image in others.values() if image.id not in going_ids), *kept]
    every_leaving = [*leaving.values(), *nameless.values()]
    sizes = images.layer_sizes(workspace.engine, every_leaving)
    went = (name for name, state in states.items() if state == "pruned")
    fetched = (*packages.stale_wheels(workspace.project, lock), *mod_choice.stale(workspace.project))
    return PrunePlan(
        going=tuple(
            RemovableImage(
                name,
                lock.images[name.repository].numbers[name.number].built,
                _frees(sizes, [image], every.values()) if name in leaving else 0,
                str(holders[name]) if holders[name] else None,
                tuple(sorted(names[name] - {str(name)})),
            )
            for name, image in going.items()
        ),
        kept={name: reasons[name] for name in sorted(reasons) if reasons[name]},
        nameless=tuple(sorted(nameless)),
        compiled=compile_caches.without_used(
            workspace.project,
            lock,
            compile_caches.find_compile_caches(workspace.engine, workspace.environment, sorted([*going, *went])),
            {*going, *went},
        ),
        fetched={path: compile_caches.disk_usage(path) for path in fetched},
        layers=_frees(sizes, every_leaving, staying),
        checkpoints=conversion.find_leftovers(workspace.project, workspace.environment, _paired_revisions(lock)),
    )


def _paired_revisions(lock: Lock) -> set[str]:
    """The revisions of all pairings: the present pairings, and the earlier pairings, which a rollback may restore."""
    pairings = (pairing for model in lock.models.values() for pairing in (model.pairing, *model.previous))
    return {pairing.revision for pairing in pairings if pairing.revision}


def _frees(sizes: dict[Layer, int], going: Iterable[ImageDetails], staying: Iterable[ImageDetails]) -> int:
    ids = {image.id for image in going}
    kept = {layer for image in staying if image.id not in ids for layer in images.layers(image)}
    return sum(sizes[layer] for layer in {layer for image in going for layer in images.layers(image)} - kept)


def prune_images(workspace: Workspace, pruning: PrunePlan) -> Pruned:
    """Carries out a plan, one image at a time. Each numbered image is recorded as pruned before it is removed, so an
    interruption never leaves a wrong lock. An image that changed after planning stays; ``refused`` has the reason."""
    work_folder.remove_stale(workspace)
    cached = bake_run.settled_records(workspace.engine)
    gone: list[ImageName] = []
    refused: list[str] = []
    stamp = words.now()
    # These come first, because nothing records them: a full disk has room for a record only afterwards.
    packages.remove_wheels(pruning.fetched)
    for id_ in pruning.nameless:
        try:
            images.remove_image(workspace.engine, id_)
        except ConflictError as error:
            refused.append(error.message)
    for going in pruning.going:
        workspace.report(Message(f"removing {going.name}"))
        try:
            if holder := _prune_number(workspace, going.name, stamp):
                refused.append(
                    f"{going.name} is recorded as pruned and stays in the engine, because {holder} also has it"
                )
            else:
                gone.append(going.name)
        except ConflictError as error:
            refused.append(error.message)
    compiled, stayed = _remove_compiled(workspace, pruning)
    _remove_checkpoints(workspace, pruning)
    return Pruned(tuple(gone), compiled, (*refused, *stayed), _prune_cache(workspace, cached))


def _remove_checkpoints(workspace: Workspace, pruning: PrunePlan) -> None:
    if not pruning.checkpoints:
        return
    wanted = _paired_revisions(lock_file.read_lock(workspace.project.lock))
    for checkpoint in conversion.find_leftovers(workspace.project, workspace.environment, wanted):
        if checkpoint in pruning.checkpoints:
            workspace.report(Message(f"removing {checkpoint.title}"))
            conversion.remove_leftovers(checkpoint.paths)


def _prune_number(workspace: Workspace, name: ImageName, stamp: str) -> claims.ProjectIdentity | None:
    """Records a number as pruned at ``stamp`` (RFC 3339 UTC), and removes its image from the engine. If another project
    also has the number, the image stays, and that project is returned. The build directory stays. An image that is
    already gone is not an error. Raises ConflictError, with nothing changed, if the number must stay or is in use."""
    with images_lock.transaction(workspace) as transaction:
        before = transaction.lock
        image, details = before.image(name), images.inspect_image(workspace.engine, str(name))
        if image is None or (details is not None and images.fingerprint(details) != image.fingerprint):
            raise ConflictError(f"{name} changed after this command started, so the command did not remove it")
        if image.pinned or before.images[name.repository].current == name.number or before.models_on(name):
            message = f"{name} was kept, paired or made current after this command started: it was not removed"
            raise ConflictError(message)
        holder = images_lock.number_holder(workspace, name)
        if holder:
            transaction.announce(ImageName(name.repository, before.images[name.repository].current or 0))
        else:
            for left in named_registry.left_by_push(name, details.tags if details else ()):
                images.remove_extra_tag(workspace.engine, left)
            transaction.announce(name, details.id if details else "")
        transaction.commit(before.with_image(name, replace(image, pruned=image.pruned or stamp)))
        if holder is None:
            try:
                images.remove_image(workspace.engine, str(name))
            except ConflictError:
                transaction.commit(before)
                raise
        return holder


def _remove_compiled(workspace: Workspace, pruning: PrunePlan) -> tuple[tuple[ImageName, ...], tuple[str, ...]]:
    """Removes the compile caches of images that are gone. Returns their numbers, and one line for each failure."""
    lock = lock_file.read_lock(workspace.project.lock)
    helper = next((str(name) for name in pruning.kept if images.inspect_image(workspace.engine, str(name))), None)
    gone: list[ImageName] = []
    stayed: list[str] = []
    for cache in pruning.compiled:
        image = lock.image(cache.name)
        if image is None or not image.pruned or images.inspect_image(workspace.engine, str(cache.name)):
            continue
        if message := compile_caches.remove_compile_caches(workspace.engine, cache, helper):
            stayed.append(message)
        else:
            gone.append(cache.name)
    return tuple(gone), tuple(stayed)


def _prune_cache(workspace: Workspace, before: Iterable[bake_run.CacheRecord]) -> int:
    lock = lock_file.read_lock(workspace.project.lock)
    gone = dockerfile_text(workspace.project, [name for name, image in lock.numbered() if image.pruned])
    kept = dockerfile_text(workspace.project, [name for name, image in lock.numbered() if not image.pruned])
    after = bake_run.settled_records(workspace.engine)
    return bake_run.remove_build_cache(workspace.engine, removable_records(before, after, gone, kept))


# Orphans that builds of this project left in the engine: images without a name, and records of BuildKit's cache.
# Anything that another project or program could have made does not count.


def nameless_images(
    endpoint: Endpoint, lock: Lock, every: Mapping[str, ImageDetails], of_others: AbstractSet[str]
) -> dict[str, ImageDetails]:
    """The images without a name that builds of the lock's repositories left, by id; ``every`` has all images.

    An image that a number of this project records is left out: its tag was moved away and can be restored.
    ``of_others`` has the fingerprints of other projects' images, which are left out for the same reason.
    """
    recorded: AbstractSet[str] = {
        image.fingerprint for numbers in lock.images.values() for image in numbers.numbers.values() if not image.pruned
    }
    dangling = {id_: every[id_] for id_ in images.dangling(endpoint) if id_ in every}
    # The labels are compared here: for a filter by label, the engine reads every image that it has.
    return {
        id_: image
        for id_, image in dangling.items()
        if making.INPUT_HASH in image.labels
        and image.labels.get(making.REPOSITORY) in lock.images
        and images.fingerprint(image) not in recorded | of_others
    }


def is_untagged(image: ImageDetails) -> bool:
    return all("@" in tag for tag in image.tags)


def superseded_bases(
    endpoint: Endpoint, project: Project, lock: Lock, staying: Iterable[ImageDetails]
) -> dict[str, ImageDetails]:
    """The base images that were pulled for numbers and are not needed any more, by name. They have no tag, are no
    longer pinned, and none of the images ``staying`` is built on them."""
    every_pin = (pins.base for platforms in lock.pins.values() for pins in platforms.values())
    pinned = {base.resolved for base in every_pin if base}
    bases = {}
    on_top = [image.layers for image in staying]
    references = set()
    for name in (ImageName(name, number) for name, recorded in lock.images.items() for number in recorded.numbers):
        steps = build_directory.read_if_possible(build_directory.path_of(project, name)) or ()
        if any(step.name.endswith(BASE_PACKAGES) for step in steps):
            of_base = [step.takes for step in steps if step.name.rpartition(": ")[2] == "base"]
            digests = ((each.get("image", ""), each.get("content", "")) for each in of_base)
            references |= {f"{repository(image)}@{digest}" for image, digest in digests if digest.startswith("sha256:")}
    for reference in sorted(references):
        image = images.inspect_image(endpoint, reference) if reference.partition("@")[2] not in pinned else None
        if image and is_untagged(image) and not any(layers[: len(image.layers)] == image.layers for layers in on_top):
            bases[reference] = image
    return bases


def dockerfile_text(project: Project, names: Iterable[ImageName]) -> str:
    """The text of all Dockerfiles of these numbers, in which the steps of BuildKit's cache records are looked up."""
    texts = []
    for name in names:
        for file in build_directory.build_directory_files(build_directory.path_of(project, name)):
            if file.name == "Dockerfile":
                with suppress(OSError):
                    texts.append(files.read_plain_file(file, plan_model.LARGEST_FILE).decode(errors="replace"))
    return "\n".join(texts)


def removable_records(
    before: Iterable[bake_run.CacheRecord], after: Collection[bake_run.CacheRecord], gone: str, kept: str
) -> set[str]:
    """The ids of the cache records that only removed images needed. ``gone`` has the Dockerfiles of the removed images,
    ``kept`` the Dockerfiles of all others.

    Some records are copies of layers: their steps are in ``gone``, and they shared a layer with an image ``before`` but
    no longer do. The others belong to other stages: their steps are scripts and do not occur in ``kept``. A step of one
    line could belong to another project.
    """
    shared = {record.id for record in before if record.shared}
    if not any(record.shared for record in after):
        # Sometimes the engine marks no record as shared (seen with 28.5), although the remaining images have shared
        # layers. So the marks mean nothing then.
        shared = set()
    free = [
        record for record in after if record.step and record.step in gone and not record.shared and not record.in_use
    ]
    return {record.id for record in free if record.id in shared or ("\n" in record.step and record.step not in kept)}


# The rules that keep numbered images when others are pruned. They are pure, so that tests can try each of them.


@dataclass(frozen=True)
class EngineImages:
    """The images in the engine: the image of each number that is present with the recorded content, every other image
    by its name, and the containers that use each image, by its id."""

    numbered: Mapping[ImageName, ImageDetails]
    others: Mapping[str, ImageDetails]
    containers: Mapping[str, tuple[str, ...]]


def retention_reasons(
    lock: Lock, engine: EngineImages, keep: int, older_than: timedelta, now: datetime
) -> dict[ImageName, tuple[str, ...]]:
    """The reasons why each number stays; none for a number that may go. The ``keep`` newest numbers of each repository
    stay, and so does every image built less than ``older_than`` ago."""
    by_repository = groupby(sorted(engine.numbered, reverse=True), lambda name: name.repository)
    newest = {name for _, names in by_repository for name in [*names][:keep]}  # `islice` refuses a huge number
    own = {name: _own_reasons(lock, name, engine, newest, older_than, now) for name in engine.numbered}
    bases = _base_reasons(engine, own)
    return {name: why or bases.get(engine.numbered[name].layers, ()) for name, why in own.items()}


def _own_reasons(
    lock: Lock, name: ImageName, engine: EngineImages, newest: set[ImageName], older_than: timedelta, now: datetime
) -> tuple[str, ...]:
    repository = lock.images[name.repository]
    image = repository.numbers[name.number]
    is_irreplaceable = image.adopted is not None and image.digest is None and image.status != "bad"
    return (
        *(["current"] if repository.current == name.number else []),
        *(["kept"] if image.pinned else []),
        *(f"serves {model}" for model in lock.models_on(name)),
        *(f"used by container {used}" for used in engine.containers.get(engine.numbered[name].id, ())),
        *(["newest"] if name in newest else []),
        *(["young"] if now - datetime.fromisoformat(image.built) < older_than else []),
        *(["adopted: it cannot be built again"] if is_irreplaceable else []),
    )


def _base_reasons(
    engine: EngineImages, own: Mapping[ImageName, tuple[str, ...]]
) -> dict[tuple[str, ...], tuple[str, ...]]:
    """The reasons to keep an image that other images are built on, by its layers: every leading part of the layers of
    an image that stays."""
    staying = {str(name): engine.numbered[name] for name, why in own.items() if why}
    return {
        image.layers[:end]: (f"{name} is built on this image",)
        for name, image in sorted({**engine.others, **staying}.items())
        for end in range(1, len(image.layers))
    }

"""The adopt command: an image of the engine that was built elsewhere gets the next number of its repository, as it is.

Nothing is built and nothing is copied: the number is one more name for the same content.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder import timestamp
from builder.building import work_folder
from builder.engine import images
from builder.errors import ImageContentsError, ImageStateError
from builder.evidence import gate
from builder.lock import foreign, reading, text
from builder.lock.model import Adoption, ImageName, Lock, NumberedImage, Version
from builder.numbered import adopted, adopted_contents, adopted_names, images_lock
from builder.numbered.adopted import AdoptedContents
from builder.plan import labels
from builder.plan.model import StagedFile
from builder.serving import model_pairing

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from builder.building.work_folder import WorkFolder
    from builder.engine.images import ImageDetails
    from builder.serving.model_pairing import PairingSource
    from builder.workspace import Workspace


@dataclass(frozen=True)
class AdoptRequest:
    """A request to adopt ``image``, a name or an id in the engine: as the next number of ``repository`` (None for its
    own), paired with ``models``, and as the current one if ``promote``."""

    image: str
    repository: str | None = None
    models: tuple[str, ...] = ()
    promote: bool = True


@dataclass(frozen=True)
class AdoptedImage:
    """The number of an adopted image, and its record. ``already`` is true where it had the number before; ``restored``
    where the engine lacked that number, which has its tag again. ``models`` were paired with it now; ``current`` is the
    current number of the repository; ``same`` are numbers of other repositories with the same content. ``packages``
    counts its Python packages; ``unknown`` says why its software is not known, and is empty where it is."""

    image: ImageName
    record: NumberedImage
    already: bool
    restored: bool
    models: tuple[str, ...]
    current: ImageName
    same: tuple[ImageName, ...]
    packages: int
    unknown: str


def run(workspace: Workspace, request: AdoptRequest) -> AdoptedImage:
    """Gives an image the next number of its repository. An image that has a number there keeps that one, and gets its
    tag again where the engine lacks it.

    Raises ImageStateError where the engine has no such image, UsageError where its repository cannot be told, or is no
    name for one, ImageContentsError where it is to serve a model and no vLLM is found in it.
    """
    work_folder.recover(workspace)
    lock = reading.of(workspace.project)
    details = adopted_names.find(workspace.engine, request.image)
    repository, source = adopted_names.choose(workspace.project, request.image, request.repository, details)
    pairings = {
        model: model_pairing.source(workspace.project, workspace.environment, lock, model, repository, source)
        for model in request.models
    }
    for model, origin in pairings.items():
        gate.refuse_unproven(workspace, model, origin.recipe)
    if (name := _numbered(lock, repository, details)) is not None:
        return _again(workspace, name, details, pairings)
    with work_folder.create(workspace, repository, {}) as job:
        named = _keep(workspace, repository, details, job)
        contents, sources = adopted_contents.look_into(workspace, request.image, details, job.labels)
        _require_vllm(request.models, details, sources, contents.unknown)
        own_labels = labels.read(details.labels)  # another project built it, or what it stands on
        record = NumberedImage(
            built=timestamp.now(),
            definition="",
            platform=details.platform,
            fingerprint=images.fingerprint(details),
            input_hash="",
            size=images.disk_size(workspace.engine, named),
            versions={name: Version(package.version, package.commit) for name, package in sources.items()},
            mods=own_labels.mods if own_labels else {},
            adopted=Adoption(source, adopted_names.in_registries(details, source)),
        )
        if reason := foreign.refused(Lock().with_image(ImageName(repository, 1), record)):
            raise ImageStateError(f"{request.image} cannot be recorded: {reason}")
        files = {adopted.FILE: StagedFile(adopted.dump(contents))}
        with images_lock.transaction(workspace) as transaction:
            # Another process may have adopted it meanwhile.
            if (name := _numbered(transaction.lock, repository, details)) is None:
                name = transaction.next_name(repository, record.fingerprint)
                own_part = _recorded(Lock(), name, record, pairings, promote=request.promote)
                files[images_lock.RECORD] = StagedFile(text.dump(own_part).encode())
                work_folder.write(job.directory, files)
                candidate = images_lock.Candidate(details.id, job.directory, details.id, record.fingerprint)
                transaction.place(name, candidate)
                lock = _recorded(transaction.lock, name, record, pairings, promote=request.promote)
                transaction.commit(lock)
                return _result(transaction.lock, name, contents, request.models)
    return _again(workspace, name, details, pairings)


def _require_vllm(models: Sequence[str], details: ImageDetails, versions: Collection[str], unknown: str) -> None:
    """Raises ImageContentsError where models are to be served by an image that has no vLLM among its ``versions``, and
    whose labels name none either: this engine may not be able to look into it."""
    own_labels = labels.read(details.labels)
    if models and "vllm" not in {*versions, *(own_labels.versions if own_labels else ())}:
        raise ImageContentsError(
            f"no vLLM was found in the image, to serve {', '.join(models)}: {unknown}. Nothing was recorded",
            hint="without `--model` it gets its number; `builder pair` pairs a model with it then",
        )


def _numbered(lock: Lock, repository: str, details: ImageDetails) -> ImageName | None:
    """The highest number of ``repository`` with the content of an image."""
    fingerprint = images.fingerprint(details)
    numbers = lock.images[repository].numbers if repository in lock.images else {}
    same = [number for number, image in numbers.items() if image.fingerprint == fingerprint]
    return ImageName(repository, max(same)) if same else None


def _keep(workspace: Workspace, repository: str, details: ImageDetails, job: WorkFolder) -> str:
    """A name of an image, which gets one until it has its number where it has none. Were this killed in between, it
    would else be deleted as what a killed build left; as its only name, this one stays."""
    if details.tags:
        return details.tags[0]
    tag = f"{repository}:adopting-{details.id.removeprefix('sha256:')[:12]}"
    job.note_extra_tag(tag)
    images.tag(workspace.engine, details.id, tag)
    return tag


def _recorded(
    lock: Lock, name: ImageName, record: NumberedImage, pairings: Mapping[str, PairingSource], *, promote: bool
) -> Lock:
    lock = lock.with_image(name, record)
    repository = lock.images[name.repository]
    if promote or repository.current is None:
        lock = lock.with_repository(name.repository, repository.with_current(name.number))
    return _paired(lock, name, pairings)


def _paired(lock: Lock, name: ImageName, pairings: Mapping[str, PairingSource]) -> Lock:
    for model, origin in pairings.items():
        lock = lock.with_pairing(model, model_pairing.pairing(lock, model, name, origin))
    return lock


def _again(
    workspace: Workspace, name: ImageName, details: ImageDetails, pairings: Mapping[str, PairingSource]
) -> AdoptedImage:
    """Gives an image that has a number the tag of that number, if the engine lacks it, and pairs it with models.

    Raises ImageStateError where the tag names other content.
    """
    with images_lock.transaction(workspace) as transaction:
        lock = transaction.lock
        record = lock.images[name.repository].numbers[name.number]
        _require_vllm(tuple(pairings), details, record.versions, f"{name} is recorded without one")
        tagged = images.inspect(workspace.engine, str(name))
        if tagged is not None and images.fingerprint(tagged) != record.fingerprint:
            raise ImageStateError(
                f"images.lock records this content as {name}, but that tag names another image in the engine",
                hint=f"`docker tag {name} OTHER-NAME; docker image rm {name}` sets it free; then adopt again",
            )
        if tagged is None:
            transaction.announce(name)
            images_lock.claim(workspace, name, record.fingerprint)
            images.tag(workspace.engine, details.id, str(name))
        models = tuple(m for m in pairings if m not in lock.models or lock.models[m].pairing.image != name)
        transaction.commit(_paired(lock.with_image(name, replace(record, pruned=None)), name, pairings))
        lock = transaction.lock
    contents = adopted.read(workspace.project.build_directory(name.repository, name.number))
    result = _result(lock, name, contents or AdoptedContents(record.fingerprint), models)
    return replace(result, already=True, restored=tagged is None)


def _result(lock: Lock, name: ImageName, contents: AdoptedContents, models: tuple[str, ...]) -> AdoptedImage:
    record, repository = lock.images[name.repository].numbers[name.number], lock.images[name.repository]
    same = (
        ImageName(other, number)
        for other, numbers in lock.images.items()
        for number, image in numbers.numbers.items()
        if other != name.repository and image.fingerprint == record.fingerprint
    )
    return AdoptedImage(
        image=name,
        record=record,
        already=False,
        restored=False,
        models=models,
        current=ImageName(name.repository, repository.current or name.number),
        same=tuple(sorted(same)),
        packages=len(contents.packages),
        unknown=contents.unknown,
    )

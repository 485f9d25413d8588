"""The adopt command: an image of the engine that was built elsewhere gets the next number of its repository, as it is.

Nothing is built and nothing is copied: the number is one more name for the same content.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder import timestamp
from builder.building import work_folder
from builder.definitions import image
from builder.engine import images, installed, reference
from builder.engine.client.errors import EngineHTTPError
from builder.errors import BuildFailedError, ImageStateError, UsageError
from builder.events import Message
from builder.lock import reading, text
from builder.lock.model import Adoption, ImageName, Lock, NumberedImage, Version
from builder.numbered import adopted, images_lock
from builder.numbered.adopted import AdoptedContents
from builder.plan import labels
from builder.plan.model import StagedFile
from builder.serving import model_pairing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.building.work_folder import WorkFolder
    from builder.engine.images import ImageDetails
    from builder.engine.installed import InstalledPackage
    from builder.project import Project
    from builder.serving.model_pairing import PairingSource
    from builder.workspace import Workspace

# As image.schema.json has it for the repositories of definitions.
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:[._/]|__|-+)[a-z0-9]+)*")
_ID = re.compile("(sha256:)?[0-9a-f]{12,64}")
_SHOWN_TAGS = 8
_LONGEST = 200


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
    name for one.
    """
    work_folder.recover(workspace)
    lock = reading.of(workspace.project)
    details = _inspect(workspace, request.image)
    repository, source = _names(workspace.project, request, details)
    pairings = {
        model: model_pairing.source(workspace.project, workspace.environment, lock, model, repository, source)
        for model in request.models
    }
    if (name := _numbered(lock, repository, details)) is not None:
        return _again(workspace, name, details, pairings)
    with work_folder.create(workspace, repository, {}) as job:
        _keep(workspace, repository, details, job)
        contents, sources = _look_into(workspace, request.image, details, job.labels)
        own_labels = labels.read(details.labels)  # another project built it, or what it stands on
        record = NumberedImage(
            built=timestamp.now(),
            definition="",
            platform=details.platform,
            fingerprint=images.fingerprint(details),
            input_hash="",
            size=images.disk_size(workspace.engine, details.tags[0]) if details.tags else details.size,
            versions={name: Version(package.version, package.commit) for name, package in sources.items()},
            mods=own_labels.mods if own_labels else {},
            adopted=Adoption(source, _registry_names(details, source)),
        )
        files = {adopted.FILE: StagedFile(adopted.dump(contents))}
        with images_lock.transaction(workspace) as transaction:
            # Another process may have adopted it meanwhile.
            if (name := _numbered(transaction.lock, repository, details)) is None:
                name = transaction.next_name(repository)
                own_part = _recorded(Lock(), name, record, pairings, promote=request.promote)
                files[images_lock.RECORD] = StagedFile(text.dump(own_part).encode())
                work_folder.write(job.directory, files)
                transaction.place(name, images_lock.Candidate(details.id, job.directory, details.id))
                lock = _recorded(transaction.lock, name, record, pairings, promote=request.promote)
                transaction.commit(images_lock.with_reserved_slots(workspace.project, lock))
                return _result(transaction.lock, name, contents, request.models)
    return _again(workspace, name, details, pairings)


def _inspect(workspace: Workspace, image: str) -> ImageDetails:
    details = images.inspect(workspace.engine, image)
    if details is not None:
        return details
    repository = reference.repository(image)
    tags = sorted(images.tags(workspace.engine, [repository]))
    shown = ", ".join(tags[:_SHOWN_TAGS]) + (" …" if len(tags) > _SHOWN_TAGS else "")
    hint = "`docker image ls` shows those that are here"
    if tags:
        hint = f"it has: {shown}"
    elif not _ID.fullmatch(image):
        hint = f"`docker pull {image}` gets it; {hint}"
    raise ImageStateError(f"the engine has no image {image}", hint=hint)


def _names(project: Project, request: AdoptRequest, details: ImageDetails) -> tuple[str, str]:
    """The repository that gets the number, and the name by which the image is recorded."""
    typed = reference.familiar(request.image)
    own = {reference.repository(name) for name in (*details.tags, *details.digests)}
    if reference.repository(typed) in own:
        repository = reference.repository(typed)
        source = typed if "@" in typed else ":".join(reference.split_tag(typed))
    else:
        tagged = sorted({reference.repository(tag) for tag in details.tags})
        if len(tagged) != 1 and request.repository is None:
            several = f"it is tagged in {', '.join(tagged)}" if tagged else "it has no name"
            raise UsageError(
                f"{request.image} belongs to no one repository: {several}",
                hint="say which repository it gets a number of: `--as REPOSITORY`",
            )
        repository, source = (tagged or [""])[0], details.id
    chosen = repository if request.repository is None else request.repository
    _refuse_definition(project, request.repository)
    if not _REPOSITORY.fullmatch(chosen):
        what = f"`{chosen}`" if request.repository is None else f"`--as {chosen}`"
        raise UsageError(
            f"{what} is no name of a repository here: lower-case letters and digits, with . _ - or / between them",
            hint="`--as REPOSITORY` gives it a number of another one, such as `--as vllm-node`",
        )
    return chosen, source


def _refuse_definition(project: Project, name: str | None) -> None:
    """Raises UsageError for the name of a definition, whose images belong to another repository."""
    if name in image.names(project) and (repository := image.repository_of(project, name)) != name:
        raise UsageError(
            f"`{name}` is an image definition: its images belong to {repository}", hint=f"`--as {repository}`"
        )


def _registry_names(details: ImageDetails, source: str) -> tuple[str, ...]:
    """The names by which registries may have an image, that of the name which it is adopted by first. One without a
    slash is of this engine alone, or of Docker's own images."""
    names = {name for name in details.digests if "/" in name}
    own = reference.repository(source)
    return tuple(sorted(names, key=lambda name: (reference.repository(name) != own, name)))


def _numbered(lock: Lock, repository: str, details: ImageDetails) -> ImageName | None:
    """The highest number of ``repository`` with the content of an image."""
    fingerprint = images.fingerprint(details)
    numbers = lock.images[repository].numbers if repository in lock.images else {}
    same = [number for number, image in numbers.items() if image.fingerprint == fingerprint]
    return ImageName(repository, max(same)) if same else None


def _keep(workspace: Workspace, repository: str, details: ImageDetails, job: WorkFolder) -> None:
    """Gives an image without a name one until it has its number. Were this killed in between, it would else be deleted
    as what a killed build left; as its only name, this one stays."""
    if not details.tags:
        tag = f"{repository}:adopting-{details.id.removeprefix('sha256:')[:12]}"
        job.extra_tag_file.write_text(tag, encoding="utf-8")
        images.tag(workspace.engine, details.id, tag)


def _look_into(
    workspace: Workspace, image: str, details: ImageDetails, marks: Mapping[str, str]
) -> tuple[AdoptedContents, Mapping[str, InstalledPackage]]:
    """Reads what is in an image, in a container with the labels ``marks``; without its software where that cannot be
    read, which is no error."""
    workspace.report(Message(f"looking into {image}"))
    contents = AdoptedContents(images.fingerprint(details), labels=dict(details.labels))
    try:
        software = installed.read(workspace.engine, details.id, marks, details.platform)
    except (ImageStateError, EngineHTTPError) as error:
        why = _plain(error.message.splitlines()[0].replace(details.id, image))
        return replace(contents, unknown=why), {}
    except BuildFailedError:  # its message is the whole script
        return replace(contents, unknown=f"{image} did not tell in {installed.READ_SECONDS} seconds what is in it"), {}
    packages = {_plain(name): _plain(version) for name, version in software.packages.items()}
    contents = replace(contents, python=_plain(software.python), packages=packages, metadata=software.metadata)
    if "vllm" not in software.sources:
        contents = replace(contents, unknown=f"{image} has no vLLM")
    sources = {name: replace(package, version=_plain(package.version)) for name, package in software.sources.items()}
    return contents, sources


def _plain(text: str) -> str:
    """``text`` of an image of others, as it may stand on a terminal."""
    return "".join(character for character in text if character.isprintable())[:_LONGEST]


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
        tagged = images.inspect(workspace.engine, str(name))
        if tagged is not None and images.fingerprint(tagged) != record.fingerprint:
            raise ImageStateError(
                f"images.lock records this content as {name}, but that tag names another image in the engine",
                hint=f"`docker tag {name} OTHER-NAME; docker image rm {name}` sets it free; then adopt again",
            )
        if tagged is None:
            transaction.announce(name)
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

"""Upstream images: the dated images of a registry (bases), copies of images (mirror), and images that vanished (doctor
--upstream)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import words
from builder.base.errors import BuilderError, FileProblemsError, SourceError, TransferError, UsageError
from builder.base.events import Diagnosis, Message
from builder.base.values import dataclass
from builder.definitions import configuration, recipe
from builder.definitions import image as definitions
from builder.engine import archives, images, installed, machine, registry, transfer
from builder.lock import checking, lock_file
from builder.numbers import build_directory, named_registry, status

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.lock.model import BasePin, Lock
    from builder.numbers.workspace import Workspace


@dataclass(frozen=True)
class DatedBase(registry.PublishedImage):
    """An image of a registry, the definitions that pin it, and ``here``: true if this engine has it."""

    pinned_by: tuple[str, ...]
    here: bool


@dataclass(frozen=True)
class Bases:
    """The images of ``repository`` for ``platform``, the newest first; ``left_out`` counts older tags."""

    repository: str
    platform: str
    images: tuple[DatedBase, ...]
    left_out: int


def list_bases(workspace: Workspace, name: str, platform: str | None, newest: int) -> Bases:
    """Reads the ``newest`` dated tags of ``name`` in its registry. ``name`` is an image, or a definition with a base.
    If no tag has a date, the last tags by name are read. Raises UsageError for a definition without a base, SourceError
    if the registry cannot be read."""
    project, engine = workspace.project, workspace.engine
    repository = _repository(workspace, name)
    wanted_platform = platform or machine.platform(engine)
    every = registry.tags(engine, repository)
    dated = [tag for tag in every if images.day_of(tag)]
    chosen = sorted(dated or every, key=lambda tag: (images.day_of(tag), tag), reverse=True)
    read = registry.published(engine, repository, chosen[:newest], wanted_platform, project.engine_cache)
    pins = tuple(_pinned_bases(lock_file.read_project_lock(project)))
    here = {
        name.partition("@")[2] for listed in images.image_listing(engine) for name in listed.get("RepoDigests") or ()
    }
    pinned: dict[str, list[str]] = {}
    for definition, pin in pins:
        if images.repository(pin.requested) == repository:
            pinned.setdefault(pin.resolved, []).append(definition)
    ordered = sorted(read, key=lambda each: (each.day, each.tag), reverse=True)
    bases = (
        DatedBase(**vars(each), pinned_by=tuple(pinned.get(each.digest, ())), here=each.digest in here)
        for each in ordered
    )
    return Bases(repository, wanted_platform, tuple(bases), len(chosen) - len(chosen[:newest]))


# The mirror command copies images that may vanish. If the registry no longer has a base, a build uses the copy
# (`bake.bake_images`).


@dataclass(frozen=True)
class Mirrored:
    """An upstream image, named with its digest, and its copy. ``already`` is true if the copy already existed."""

    image: str
    copy: str
    already: bool


def mirror_images(workspace: Workspace, names: Sequence[str]) -> Iterator[Mirrored]:
    """Copies images by their digests into the folder ``mirror`` of builder.yaml, or else into its registry. An image
    that its registry does not have is copied from this engine. A name is a definition (for its pinned bases), an
    adopted number, or an image of a registry: NAME[:TAG], NAME@DATE or NAME@DIGEST. Raises UsageError if builder.yaml
    names neither folder nor registry, or a definition has no pinned base from a registry; SourceError and TransferError
    if an image cannot be read or copied."""
    settings = configuration.load_configuration(workspace.project)
    folder, address = settings.mirror, settings.registry or ""
    if not (folder or address):
        message = "builder.yaml sets no place for copies"
        raise UsageError(message, hint="write `mirror: /FOLDER` or `registry: HOST:PORT/PATH` into builder.yaml")
    lock = lock_file.read_project_lock(workspace.project)
    for reference in dict.fromkeys(each for name in names for each in _with_digest(workspace, lock, name)):
        if copy := named_registry.mirrored(workspace, reference):
            yield Mirrored(reference, copy.partition("://")[2], already=True)
        elif folder:
            yield Mirrored(reference, _into_folder(workspace, folder, reference), already=False)
        else:
            yield Mirrored(reference, _into_registry(workspace, address, reference), already=False)


def _into_registry(workspace: Workspace, address: str, reference: str) -> str:
    name, _, digest = reference.partition("@")
    # A registry may remove images without a tag.
    tag = name.removeprefix(images.repository(name)).removeprefix(":") or digest.replace(":", "-")
    target = f"{named_registry.mirror_of(address, name)}:{tag}"
    try:
        registry.copy_image(workspace.engine, reference, target)
    except TransferError:
        here = _engine_copy(workspace, reference)
        if not here:
            raise
        images.tag_image(workspace.engine, here, target)
        try:
            transfer.push_image(workspace.engine, target, registry.auth_headers(target), workspace.report)
        finally:
            images.remove_extra_tag(workspace.engine, target)
    _require_digest(target, registry.manifest_digest(workspace.engine, target), digest)
    return f"{target}@{digest}"


def _into_folder(workspace: Workspace, folder: Path, reference: str) -> str:
    name, _, digest = reference.partition("@")
    receive = partial(archives.store_blob, folder)
    try:
        top = registry.download_image(workspace.engine, images.repository(name), digest, receive)
    except SourceError:
        here = _engine_copy(workspace, reference)
        if not here:
            raise
        try:
            top, _ = archives.save_archive(workspace.engine, here, receive, lambda _: None)
        except (ValueError, KeyError, TypeError) as error:
            message = f"{here} was not copied: the engine sent an unexpected archive ({error})"
            raise TransferError(message, hint="run the command again") from None
    _require_digest(str(folder), top.digest, digest)
    archives.name_image(folder, top, name)
    return f"{folder}@{digest}"


def _engine_copy(workspace: Workspace, reference: str) -> str:
    """The engine's name of an image that its registry does not have. Empty if the engine does not have it either."""
    name, _, digest = reference.partition("@")
    here = f"{images.repository(name)}@{digest}"
    if images.inspect_image(workspace.engine, here) is None:
        return ""
    workspace.report(Message(f"copying {reference} from this engine, because its registry does not have it"))
    return here


def _require_digest(where: str, actual: str | None, digest: str) -> None:
    if actual != digest:
        problem = f"has the digest {actual}, not {digest}" if actual else "is missing after it was sent"
        raise TransferError(f"the copy in {where} {problem}: a build cannot use it")


def _with_digest(workspace: Workspace, lock: Lock, name: str) -> Iterable[str]:
    """The images of a name, each as NAME:TAG@DIGEST."""
    if name in definitions.definition_names(workspace.project):
        bases = [f"{pin.requested}@{pin.resolved}" for definition, pin in _pinned_bases(lock) if definition == name]
        if not bases:
            hint = f"`builder lock {name}` pins the base; if {name} has `from`, name the definition in `from` instead"
            raise UsageError(f"images.lock pins no base image from a registry for {name}", hint=hint)
        return bases
    repository, _, _ = name.partition(":")
    if repository in lock.images:
        image, recorded = status.named_number(workspace.project, lock, name)
        if recorded.adopted is None or not recorded.adopted.digests:
            why = "was built here" if recorded.adopted is None else "did not come from a registry"
            hint = f"`builder push {image}` copies it into your registry"
            raise UsageError(f"{image} {why}: `mirror` copies only images that came from a registry", hint=hint)
        return recorded.adopted.digests[:1]
    _named(images.split_day(name)[0])
    reference = registry.on_day(workspace.engine, name)
    if re.search(f"@{images.DIGEST}$", reference):
        return [reference]
    digest = registry.manifest_digest(workspace.engine, reference)
    if digest is None:
        hint = f"`builder bases {images.repository(name)}` lists tags"
        raise SourceError(f"the registry has no {reference}", hint=hint)
    return [f"{reference}@{digest}"]


# Images that may vanish, for `doctor --upstream`.


def upstream_findings(workspace: Workspace) -> Iterator[Diagnosis]:
    """Asks the registries for each base, each adopted image, and each image that a recipe names. Records the answers
    for `list` (`status.UpstreamAnswers`)."""
    lock = lock_file.read_project_lock(workspace.project)
    numbers = dict(_unpushed(workspace, lock))
    users: dict[str, list[str]] = {}
    pinned = ((f"{pin.requested}@{pin.resolved}", f"the base of {name}") for name, pin in _pinned_bases(lock))
    of_numbers = ((reference, number) for number, reference in numbers.items() if reference)
    for reference, user in (*pinned, *_named_by_recipes(workspace.project, lock), *of_numbers):
        users.setdefault(reference, []).append(user)
    gone: dict[str, str] = {"": ""}  # an image that came from no registry is in no registry
    all_there = True
    for reference, used_by in users.items():
        why = ""
        try:
            if registry.manifest_digest(workspace.engine, reference):
                continue
        except TransferError as error:
            why = error.message
        all_there = False
        message = f"{', '.join(used_by)}: {why or 'the registry no longer has the image'}"
        finding = _gone(workspace, reference, message, answered=not why)
        yield finding
        if not why and finding.verdict != "ok":  # a registry that does not answer may still have it
            gone[reference] = ", ".join(user for user in used_by if user not in numbers)
    alone = [number for number, reference in numbers.items() if reference in gone]
    for number in alone:
        remedy = f"`builder push {number}` copies it into your registry"
        yield Diagnosis(number, "warning", "this image exists only here", remedy)
    if users and all_there:
        yield Diagnosis("upstream", "ok", f"every upstream image still exists in its registry ({len(users)})")
    used = {reference: users for reference, users in gone.items() if users}
    status.record_upstream(workspace.project, status.UpstreamAnswers(words.now(), used, tuple(alone)))


def _gone(workspace: Workspace, reference: str, message: str, *, answered: bool) -> Diagnosis:
    """The finding for an image that cannot be read from its registry. The finding is ``ok`` if a copy exists."""
    subject, at, _ = reference.partition("@")
    if not at:  # for an image named by its tag, this engine may know the digest
        here = images.inspect_image(workspace.engine, subject)
        reference = next((f"{subject}@{name.partition('@')[2]}" for name in here.digests), "") if here else ""
    with suppress(TransferError):
        if copy := named_registry.mirrored(workspace, reference) if reference else None:
            return Diagnosis(subject, "ok", f"{message}; a copy exists: {copy.partition('://')[2]}")
    digest = reference.partition("@")[2]
    if digest and images.inspect_image(workspace.engine, f"{images.repository(subject)}@{digest}"):
        remedy = f"`builder mirror {reference}` makes a copy"
        return Diagnosis(subject, "warning", f"{message}; this engine has the last known copy", remedy)
    login = "check the network and your login (`docker login REGISTRY`), then try again"
    remedy = "choose another image or tag" if answered else login
    return Diagnosis(subject, "warning", f"{message}; no copy is known", remedy)


def _unpushed(workspace: Workspace, lock: Lock) -> Iterator[tuple[str, str]]:
    """The numbers of this engine that were not pushed, each with the upstream image that it is or is built on. The
    image is empty for an adopted number that came from no registry."""
    for name, state in status.image_states(workspace, lock)[0].items():
        image = lock.images[name.repository].numbers[name.number]
        if state != "present" or image.digest:
            continue
        if image.adopted:
            yield str(name), next(iter(image.adopted.digests), "")
            continue
        with suppress(FileProblemsError):
            build = build_directory.read_build_directory(workspace.project, name)
            base = next((part.takes["base"] for part in build.parts if "base" in part.takes), {})
            if base.get("content", "").startswith("sha256:"):
                yield str(name), f"{base['image']}@{base['content']}"


def _pinned_bases(lock: Lock) -> Iterator[tuple[str, BasePin]]:
    for name, by_platform in lock.pins.items():
        for pin in (pins.base for pins in by_platform.values() if pins.base):
            if not pin.resolved.startswith(installed.LOCAL):
                yield name, pin


def _named_by_recipes(project: Project, lock: Lock) -> Iterator[tuple[str, str]]:
    own = {*lock.images, *definitions.definition_repositories(project)}
    for path in recipe.recipe_files(project.recipes):
        with suppress(BuilderError):  # `doctor` reports invalid recipes separately
            read = recipe.load_recipe(project, path)
            if read.repository not in own and "/" in read.container:
                yield read.container, f"the image of recipe {read.name}"


def _repository(workspace: Workspace, name: str) -> str:
    if name not in definitions.definition_names(workspace.project):
        return _named(images.split_day(name)[0])
    base = definitions.load_image(workspace.project, name, machine.platform(workspace.engine)).base
    if base is None:
        raise UsageError(f"{name} has no base image of its own", hint="name the definition that it is built on")
    return images.repository(images.split_day(base)[0])


def _named(reference: str) -> str:
    """The repository of an image. Raises UsageError for a text that is not an image name, without asking a registry."""
    repository = images.repository(reference)
    if not checking.is_a("repository", repository) and not repository.startswith("["):  # an IPv6 address
        raise UsageError(f"`{reference}` is not the name of an image", hint="write a name such as vllm/vllm-openai")
    return repository

"""The images of others: those that a registry has by date (bases), a copy of them in a registry of one's own (mirror),
and those that have vanished (doctor --upstream)."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.base.errors import BuilderError, SourceError, TransferError, UsageError
from builder.base.events import Diagnosis, Message
from builder.definitions import configuration, recipe
from builder.definitions import image as definitions
from builder.engine import images, installed, registry, registry_tags, transfer, versions
from builder.lock import lock_file
from builder.numbers import named_registry, status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.base.project import Project
    from builder.lock.model import BasePin, Lock
    from builder.numbers.workspace import Workspace

# The last words of the labels that communities use, such as `vllm-version`, `dev.arena.vllm.hash`.
_LABELS = {
    "vllm": re.compile(r"vllm[._-](?:version|ref)"),
    "vllm_commit": re.compile(r"vllm[._-](?:hash|commit|sha)"),
    "flashinfer": re.compile(r"flashinfer[._-](?:version|ref)"),
    "flashinfer_commit": re.compile(r"flashinfer[._-](?:hash|commit|sha)"),
    "commit": re.compile(r"repo[._-]commit|org\.opencontainers\.image\.revision"),
}


@dataclass(frozen=True)
class DatedBase:
    """An image of a registry, with the day in its tag or on which it was made, what its labels say of its contents
    (empty where none does), its packed size in bytes, the definitions that have it pinned, and whether this engine has
    it."""

    tag: str
    day: str
    digest: str
    labels: Mapping[str, str]
    size: int
    pinned_by: tuple[str, ...]
    here: bool


@dataclass(frozen=True)
class Bases:
    """The images of ``repository`` for ``platform``, the newest first; ``left_out`` counts those that were not asked
    about."""

    repository: str
    platform: str
    images: tuple[DatedBase, ...]
    left_out: int


def list_bases(workspace: Workspace, name: str, platform: str | None, newest: int) -> Bases:
    """Reads the ``newest`` tags with a day that a registry has of ``name``, an image or a definition whose base it is;
    where none has a day, the last ones by name. Raises UsageError for a definition without a base, SourceError where
    the registry cannot be read."""
    project, engine = workspace.project, workspace.engine
    repository = _repository(workspace, name)
    wanted_platform = platform or versions.platform(engine)
    every = registry_tags.tags(engine, repository)
    dated = [tag for tag in every if images.day_of(tag)]
    chosen = sorted(dated or every, key=lambda tag: (images.day_of(tag), tag), reverse=True)
    read = registry_tags.published(engine, repository, chosen[:newest], wanted_platform, project.engine_cache)
    pins = _pinned(lock_file.read_project_lock(project), repository)
    here = {
        name.partition("@")[2] for listed in images.image_listing(engine) for name in listed.get("RepoDigests") or ()
    }
    bases = [
        DatedBase(
            each.tag,
            each.day,
            each.digest,
            labels_of(each.labels),
            each.size,
            pins.get(each.digest, ()),
            each.digest in here,
        )
        for each in read
    ]
    ordered = sorted(bases, key=lambda each: (each.day, each.tag), reverse=True)
    return Bases(repository, wanted_platform, tuple(ordered), len(chosen) - len(chosen[:newest]))


def labels_of(labels: Mapping[str, str]) -> dict[str, str]:
    """The vLLM that the labels of an image name, its FlashInfer, and the commit that it was built from."""
    by_name = {}
    for name, pattern in _LABELS.items():
        keys = sorted(key for key in labels if pattern.search(key) and labels[key])
        if keys:
            by_name[name] = labels[keys[0]]
    return by_name


# The mirror command: copies what others may take away. A build takes its base from there where the registry that it
# came from no longer gives it (`bake.bake_images`).


@dataclass(frozen=True)
class Mirrored:
    """An image of others, named with its digest, and its copy: ``already`` where it was there."""

    image: str
    copy: str
    already: bool


def mirror_images(workspace: Workspace, names: Sequence[str]) -> Iterator[Mirrored]:
    """Copies images into the registry of builder.yaml by their digests, one after the other. A name is a definition,
    whose pinned bases are meant, an adopted number, or an image of a registry: NAME[:TAG], NAME@DATE or NAME@DIGEST.

    What no registry has is taken from this engine. Raises UsageError where builder.yaml names no registry, or a
    definition has no base of a registry pinned; SourceError and TransferError where an image cannot be read or copied.
    """
    address = configuration.load_configuration(workspace.project).required_registry()
    lock = lock_file.read_project_lock(workspace.project)
    for reference in dict.fromkeys(each for name in names for each in _with_digest(workspace, lock, name)):
        name, _, digest = reference.partition("@")
        if copy := named_registry.mirrored(workspace.engine, address, reference):
            yield Mirrored(reference, copy, already=True)
            continue
        # A registry may drop what has no tag.
        tag = name.removeprefix(images.repository(name)).removeprefix(":") or digest.replace(":", "-")
        target = f"{named_registry.mirror_of(address, name)}:{tag}"
        try:
            registry.copy_image(workspace.engine, reference, target)
        except TransferError:
            if images.inspect_image(workspace.engine, f"{images.repository(name)}@{digest}") is None:
                raise
            workspace.report(Message(f"{reference} comes from this engine: its registry does not give it"))
            _push(workspace, f"{images.repository(name)}@{digest}", target)
        copied = registry.manifest_digest(workspace.engine, target)
        if copied != digest:
            raise TransferError(f"{target} is {copied}, and not {digest}: a build on that digest cannot use it")
        yield Mirrored(reference, f"{target}@{digest}", already=False)


def _push(workspace: Workspace, image: str, target: str) -> None:
    images.tag_image(workspace.engine, image, target)
    try:
        transfer.push_image(workspace.engine, target, registry.auth_headers(target), workspace.report)
    finally:
        images.remove_extra_tag(workspace.engine, target)


def _with_digest(workspace: Workspace, lock: Lock, name: str) -> Iterator[str]:
    """The images that a name means, each as NAME:TAG@DIGEST."""
    if name in definitions.definition_names(workspace.project):
        bases = [f"{pin.requested}@{pin.resolved}" for definition, pin in _pinned_bases(lock) if definition == name]
        if not bases:
            raise UsageError(
                f"images.lock has no base of {name} that comes from a registry", hint=f"`builder lock {name}` pins it"
            )
        yield from bases
        return
    repository, _, _ = name.partition(":")
    if repository in lock.images:
        image, recorded = status.named_number(workspace.project, lock, name)
        if recorded.adopted is None or not recorded.adopted.digests:
            why = "was built here" if recorded.adopted is None else "came from no registry"
            raise UsageError(f"{image} {why}", hint=f"`builder push {image}` copies it into your registry")
        yield recorded.adopted.digests[0]
        return
    reference = registry_tags.on_day(workspace.engine, name)
    if re.search(f"@{images.DIGEST}$", reference):
        yield reference
        return
    digest = registry.manifest_digest(workspace.engine, reference)
    if digest is None:
        raise SourceError(
            f"the registry has no {reference}", hint=f"`builder bases {images.repository(name)}` lists tags"
        )
    yield f"{reference}@{digest}"


# Images that may vanish, for `doctor --upstream`.


def upstream_findings(workspace: Workspace) -> Iterator[Diagnosis]:
    """Asks the registries for each pinned base, each adopted image and each image that a recipe names."""
    lock = lock_file.read_project_lock(workspace.project)
    own = configuration.load_configuration(workspace.project).registry
    wanted: dict[str, list[str]] = {}
    pinned = ((f"{pin.requested}@{pin.resolved}", f"the base of {name}") for name, pin in _pinned_bases(lock))
    for reference, user in (*pinned, *_adopted(lock), *_named_by_recipes(workspace.project, lock)):
        wanted.setdefault(reference, []).append(user)
    for user in wanted.pop("", ()):
        remedy = f"`builder push {user}` copies it into your registry"
        yield Diagnosis(user, "warning", "this image exists nowhere but here", remedy)
    gone = 0
    for reference, users in wanted.items():
        why = "its registry no longer has it"
        try:
            if registry.manifest_digest(workspace.engine, reference) is not None:
                continue
        except TransferError as error:
            why = error.message
        gone += 1
        yield _gone(workspace, own, reference, f"{', '.join(users)}: {why}")
    if wanted and not gone:
        yield Diagnosis("upstream", "ok", f"the registries have all {len(wanted)} images that come from others")


def _pinned_bases(lock: Lock) -> Iterator[tuple[str, BasePin]]:
    """The bases that come from a registry, each with its definition."""
    for name, by_platform in lock.pins.items():
        for pin in (pins.base for pins in by_platform.values() if pins.base):
            if not pin.resolved.startswith(installed.LOCAL):
                yield name, pin


def _adopted(lock: Lock) -> Iterator[tuple[str, str]]:
    """The adopted images that were not pushed, each with the name that its registry had for it, empty for none."""
    for repository, record in lock.images.items():
        for number, image in record.numbers.items():
            if image.adopted and not image.digest:
                yield next(iter(image.adopted.digests), ""), f"{repository}:{number}"


def _named_by_recipes(project: Project, lock: Lock) -> Iterator[tuple[str, str]]:
    own = {*lock.images, *definitions.definition_repositories(project)}
    for path in recipe.recipe_files(project.recipes):
        with suppress(BuilderError):  # `doctor` says itself what is wrong with a recipe
            read = recipe.load_recipe(project, path)
            if read.repository not in own and "/" in read.container:
                yield read.container, f"the image of recipe {read.name}"


def _gone(workspace: Workspace, own: str | None, reference: str, message: str) -> Diagnosis:
    """The finding for an image that its registry does not give."""
    subject, _, digest = reference.partition("@")
    with suppress(TransferError):
        if own and digest and named_registry.mirrored(workspace.engine, own, reference):
            return Diagnosis(subject, "ok", f"{message}; {own} has a copy")
    if digest and images.inspect_image(workspace.engine, f"{images.repository(subject)}@{digest}"):
        remedy = f"`builder mirror {reference}` copies it into your registry"
        return Diagnosis(subject, "warning", f"{message}; this engine has the last known copy", remedy)
    return Diagnosis(subject, "warning", f"{message}; no copy is known", "choose another image or tag")


def _repository(workspace: Workspace, name: str) -> str:
    if name not in definitions.definition_names(workspace.project):
        return images.repository(images.split_day(name)[0])
    base = definitions.load_image(workspace.project, name, versions.platform(workspace.engine)).base
    if base is None:
        raise UsageError(f"{name} has no base image of its own", hint="name the definition that it is built on")
    return images.repository(images.split_day(base)[0])


def _pinned(lock: Lock, repository: str) -> dict[str, tuple[str, ...]]:
    """The definitions that have an image of ``repository`` pinned, by its digest."""
    by_digest: dict[str, tuple[str, ...]] = {}
    for name, pin in _pinned_bases(lock):
        if images.repository(pin.requested) == repository:
            by_digest[pin.resolved] = (*by_digest.get(pin.resolved, ()), name)
    return by_digest

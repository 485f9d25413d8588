"""The files that a project takes over from a checkout, and the images from the engine."""

from __future__ import annotations

import json
import os
import posixpath
import re
import shlex
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from builder.base import words, yaml_file
from builder.base.errors import BuilderError, BuildFailedError, ImageContentsError, ImageStateError
from builder.base.events import Diagnosis, Message
from builder.base.files import read_plain_file
from builder.definitions import image
from builder.definitions.configuration import NOTHING_REQUIRED
from builder.definitions.fields import LARGEST_TEXT, read_text
from builder.definitions.mod import NAME, PlainFile
from builder.engine import images, installed
from builder.engine.client import EngineHTTPError
from builder.lock import lock_file
from builder.lock.model import Lock
from builder.moving import checkout as checkouts
from builder.moving import copies
from builder.moving.copies import PlannedCopy
from builder.numbers import retention
from builder.plan import making
from builder.serving import selection

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from builder.base.project import Project
    from builder.definitions.recipe import Recipe
    from builder.engine.images import ImageDetails
    from builder.moving.checkout import Checkout, UpstreamCommit
    from builder.moving.copies import Kind
    from builder.numbers.workspace import Workspace


# The names that build-and-copy.sh gives its images, for scripts that start them without a recipe.
DEFAULT_NAMES = ("vllm-node", "vllm-node-tf5", "vllm-node-mxfp4", "vllm-node-b12x")
# What an engine takes for a name: for any other it refuses the whole question.
_NAME = re.compile(r"[a-z0-9]+(?:(?:[._/]|__|-+|:[0-9]+/)[a-z0-9]+)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?")
_LOCAL_NAME = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*")
# An image with vLLM for a GPU has 19 GB and more.
_AS_LARGE_AS_VLLM = 5_000_000_000
_READING_SECONDS = 20
_LOOKING_SECONDS = 40
# Numbers, and the names that images have while they get one.
_OURS = re.compile(r"[0-9]+|adopting-[0-9a-f]+")


@dataclass(frozen=True)
class AdoptableImage:
    """An image of the engine without a number, by one of its tags. ``promote`` if it would become the current one: it
    is ``latest``, and its repository has no numbers yet."""

    tag: str
    size: int
    created: str
    promote: bool

    @property
    def repository(self) -> str:
        return images.repository(self.tag)


@dataclass(frozen=True)
class UntaggedImage:
    """An image without a name that holds vLLM, with the first digits of its id. ``repository`` and ``model`` (empty if
    not known) are those that it most likely served; ``promote`` where that repository has no number yet."""

    id: str
    size: int
    created: str
    vllm: str
    repository: str
    model: str
    promote: bool

    @property
    def contents(self) -> str:
        return f"vllm {self.vllm}, {words.size_text(self.size)}, made {words.ago_text(self.created)}"

    @property
    def command(self) -> str:
        argv = ["builder", "adopt", self.id, "--as", self.repository]
        argv += ["--model", self.model] if self.model else []
        return shlex.join([*argv, *([] if self.promote else ["--no-promote"])])


@dataclass(frozen=True)
class ContainerState:
    """A container that so many ``recipes`` name. What serves them, if anything: ``number`` is the current image of that
    repository, ``tag`` an image of the engine without a number; ``definition`` is what builds such images."""

    container: str
    recipes: int
    number: str = ""
    tag: str = ""
    definition: str = ""


def adoptable(workspace: Workspace, recipes: Sequence[Recipe]) -> tuple[AdoptableImage, ...]:
    """The images of the engine without a number that ``recipes`` and scripts start: all tags of such a repository, but
    of a registry's only the one that a recipe names. ``latest`` is the first of its repository: whatever gets the first
    number becomes what that tag means. Raises EngineError where no engine answers, LockError for a damaged
    images.lock."""
    containers = {*DEFAULT_NAMES, *(recipe.container for recipe in recipes)}
    references = {
        ":".join(images.split_tag(name)) if "/" in name else images.repository(name)
        for name in containers
        if _NAME.fullmatch(name)
    }
    lock = lock_file.read_project_lock(workspace.project)
    by_image: dict[tuple[str, str], list[str]] = {}
    for tag, identity in images.image_tags(workspace.engine, sorted(references)).items():
        repository, name = images.split_tag(tag)
        if not _OURS.fullmatch(name):
            by_image.setdefault((repository, identity), []).append(tag)
    collected = []
    for (repository, _), same in by_image.items():
        tag = min(same, key=lambda tag: (not tag.endswith(":latest"), tag))
        details = images.inspect_image(workspace.engine, tag)
        numbers = lock.images[repository].numbers if repository in lock.images else {}
        fingerprints = {record.fingerprint for record in numbers.values()}
        if details is not None and images.fingerprint(details) not in fingerprints:
            is_first = not numbers
            collected.append(AdoptableImage(tag, details.size, details.created, is_first and tag.endswith(":latest")))
    return tuple(sorted(collected, key=lambda each: (each.repository, not each.tag.endswith(":latest"), each.created)))


def untagged(workspace: Workspace, recipes: Sequence[Recipe]) -> tuple[tuple[UntaggedImage, ...], int]:
    """The images without a name that hold vLLM, the newest first, and the number of those that could not be looked into
    in the time that this may take. Left out are what builds of this program have left, its numbers and their bases, and
    what other images stand on. The others are looked into where anything that is recorded of them names vLLM, or where
    they are as large as it is: their vLLM is read in a container, for no metadata has its version. Raises as
    `adoptable` does."""
    lock = lock_file.read_project_lock(workspace.project)
    listed = {
        entry["Id"]: entry["Size"]
        for entry in images.image_listing(workspace.engine)
        if making.INPUT_HASH not in (entry.get("Labels") or {})
        and all(tag.startswith("<none>") or "@" in tag for tag in entry.get("RepoTags") or ())
    }
    repository, model = _likely(lock, recipes)
    promote = repository not in lock.images or not lock.images[repository].numbers
    holding, unread, ends = [], 0, time.monotonic() + _LOOKING_SECONDS
    for details in _unknown(workspace, lock, listed) if listed else ():
        short, seconds = details.id.removeprefix("sha256:")[:12], ends - time.monotonic()
        vllm = _vllm(workspace, details, short, min(seconds, _READING_SECONDS)) if seconds > 0 else None
        if vllm is None:
            unread += 1
        elif vllm:
            size = listed[details.id]
            holding.append(UntaggedImage(short, size, details.created, vllm, repository, model, promote))
    return tuple(holding), unread


def untagged_findings(workspace: Workspace, recipes: Sequence[Recipe]) -> Iterator[Diagnosis]:
    holding, unread = untagged(workspace, recipes)
    for each in holding:
        message = f"{each.id} has no name any more, so that `docker image prune` deletes it: {each.contents}"
        whose = "" if each.model else "; `--model MODEL` pairs it with a model"
        yield Diagnosis("untagged", "warning", message, f"`{each.command}` gives it a number{whose}")
    if unread:
        message = f"{words.counted(unread, 'image')} without a name could not be looked into in time"
        yield Diagnosis("untagged", "warning", message, "`docker image ls --filter dangling=true` lists them")


def _unknown(workspace: Workspace, lock: Lock, listed: Mapping[str, int]) -> list[ImageDetails]:
    """Those of the images ``listed``, by id with their sizes, that may hold a vLLM that nothing here knows of."""
    recorded = {record.fingerprint for numbers in lock.images.values() for record in numbers.numbers.values()}
    bases = retention.base_digests(workspace.project, lock)
    every = images.all_images(workspace.engine)
    unknown = []
    for details in sorted(every, key=lambda each: each.created, reverse=True):
        is_below = any(
            len(other.layers) > len(details.layers) and other.layers[: len(details.layers)] == details.layers
            for other in every
        )
        is_base = any(name.partition("@")[2] in bases for name in (*details.digests, f"@{details.id}"))
        if details.id not in listed or is_below or is_base or images.fingerprint(details) in recorded:
            continue
        history = images.history(workspace.engine, details)
        text = json.dumps([*details.config.items(), *details.labels.items(), *history]).lower()
        if "vllm" in text or installed.METADATA in text or listed[details.id] >= _AS_LARGE_AS_VLLM:
            unknown.append(details)
    return unknown


def _vllm(workspace: Workspace, details: ImageDetails, shown: str, seconds: float) -> str | None:
    """The version of vLLM in an image; empty without one; None where it could not be read in ``seconds``."""
    workspace.report(Message(f"looking into {shown}, which has no name"))
    marks = {"builder.reading": f"{os.getpid()}-{shown}"}
    try:
        software = installed.read_installed(workspace.engine, details.id, marks, details.platform, seconds)
    except ImageContentsError:
        return ""
    except (ImageStateError, EngineHTTPError, BuildFailedError):
        return None
    return software.packages.get("vllm", "")


def _likely(lock: Lock, recipes: Sequence[Recipe]) -> tuple[str, str]:
    """The repository and the model that an image without a name most likely served: the repository that most recipes
    name, and their model where they have one alone that nothing serves yet."""
    local = [each for each in recipes if each.number is None and _LOCAL_NAME.fullmatch(each.repository)]
    counts = Counter(recipe.repository for recipe in local)
    repository = min(counts, key=lambda name: (-counts[name], name), default=DEFAULT_NAMES[0])
    named = [each for each in local if each.repository == repository and each.model]
    model = next((each.model for each in named), None) or ""
    is_clear = len({each.model for each in named}) == 1 and all(each.requires == NOTHING_REQUIRED for each in named)
    return repository, model if is_clear and model not in lock.models else ""


def container_states(
    workspace: Workspace, recipes: Sequence[Recipe], adoptable_images: Sequence[AdoptableImage], *, ask_engine: bool
) -> tuple[ContainerState, ...]:
    """The state of the container of each recipe; unless ``ask_engine``, as far as files tell. Raises as `adoptable`."""
    lock = lock_file.read_project_lock(workspace.project) if ask_engine else Lock()
    counts = Counter(recipe.container for recipe in recipes)
    first = {recipe.container: recipe for recipe in recipes}
    collected = []
    for container, count in sorted(counts.items()):
        definition = image.of_repository(workspace.project, first[container].repository) or ""
        number = tag = ""
        with suppress(ImageStateError):  # the number that serves it, whichever model that has
            number = str(selection.for_recipe(lock, replace(first[container], model=None)).image)
        if ask_engine and not number and _NAME.fullmatch(container):
            tags = {each.tag for each in adoptable_images}
            full = ":".join(images.split_tag(container))
            there = images.inspect_image(workspace.engine, container) if full not in tags else None
            tag = full if full in tags else container if there else ""
        collected.append(ContainerState(container, count, number, tag, definition))
    return tuple(collected)


def plan_part(
    project: Project, checkout: Checkout, kind: Kind, name: str, path: Path, upstream: UpstreamCommit | None
) -> PlannedCopy:
    if kind == "mod" and not NAME.fullmatch(name):
        return PlannedCopy("mod", name, reason="a mod's name has letters, digits and . _ + - in it")
    if kind == "recipe" and not path.resolve().is_relative_to(checkout.root):
        return PlannedCopy("recipe", name, reason="a link that leaves the checkout")
    try:
        if kind == "mod":
            files = checkouts.read_mod(checkout, path)
        else:
            content = read_plain_file(path.resolve(), LARGEST_TEXT)
            files = (PlainFile(copies.RECIPE, executable=False, content=content),)
        origin = checkouts.origin_of_files(upstream, checkout.shown(path), files)
        return copies.compare_copy(project, kind, name, files, origin)
    except (BuilderError, OSError) as error:
        reason = error.message if isinstance(error, BuilderError) else error.strerror or str(error)
        return PlannedCopy(kind, name, reason=reason)


def mods_named(path: Path) -> tuple[str, ...]:
    """The mods that the recipe at ``path`` names, as it writes them; none where it cannot be read."""
    data: Any = {}
    with suppress(BuilderError):
        data = yaml_file.load(read_text(path, path.name), path.name)
    mods = data.get("mods") if isinstance(data, dict) else None
    entries = [each.strip() for each in mods if isinstance(each, str)] if isinstance(mods, list) else []
    return tuple(posixpath.normpath(entry) for entry in entries if entry)

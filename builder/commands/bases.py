"""The bases command: the images of others that a registry has by date, with what their labels say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.base.errors import UsageError
from builder.definitions import image as definitions
from builder.engine import images, installed, registry_tags, versions
from builder.lock import lock_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.lock.model import Lock
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
    read = registry_tags.published(engine, repository, chosen[:newest], wanted_platform)
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


def _repository(workspace: Workspace, name: str) -> str:
    if name not in definitions.definition_names(workspace.project):
        return images.repository(images.split_day(name)[0])
    base = definitions.load_image(workspace.project, name, versions.platform(workspace.engine)).base
    if base is None:
        raise UsageError(f"{name} has no base image of its own", hint="name the definition that it is built on")
    return images.repository(images.split_day(base)[0])


def _pinned(lock: Lock, repository: str) -> dict[str, tuple[str, ...]]:
    """The definitions that have an image of ``repository`` pinned, by its digest."""
    by_name: dict[str, tuple[str, ...]] = {}
    for name, by_platform in lock.pins.items():
        for pins in by_platform.values():
            base = pins.base
            if (
                base
                and images.repository(base.requested) == repository
                and not base.resolved.startswith(installed.LOCAL)
            ):
                by_name[base.resolved] = (*by_name.get(base.resolved, ()), name)
    return by_name

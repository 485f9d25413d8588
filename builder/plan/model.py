"""The plan: pure data that describes a build completely, computed before anything is done."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.image import ImageDefinition
    from builder.definitions.mods.mod import Mod, ModCheck
    from builder.lock.model import Version
    from builder.lock.pins import Pins

WORKSPACE = "/workspace/vllm"


@dataclass(frozen=True)
class StagedFile:
    """A file of a build directory."""

    content: bytes
    executable: bool = False


def files_hash(files: Mapping[str, StagedFile]) -> str:
    """SHA-256 over the paths, bytes and execute bits of files, in the order of their paths."""
    digest = hashlib.sha256()
    for path, file in sorted(files.items()):
        head = f"{len(path)}:{path}:{int(file.executable)}:{len(file.content)}:"
        digest.update(head.encode() + file.content)
    return f"sha256:{digest.hexdigest()}"


@dataclass(frozen=True)
class Step:
    """A step and its inputs by name. Its identity covers the steps before it."""

    name: str
    takes: dict[str, str]


@dataclass(frozen=True)
class ImageCheck:
    """A check of the finished image, the mod that it belongs to, and the text of its script, if it has one."""

    owner: str
    check: ModCheck
    script: str | None = None


@dataclass(frozen=True)
class Plan:
    """The plan of a build. If the definition has a parent, its image is built, too; ``parent`` is its plan.

    ``files`` are the build directory's, by path; ``targets`` those of its bake file, by name; ``epoch`` is the date
    that the image carries, in seconds since 1970, taken from the pinned sources; ``warnings`` are shown beforehand.
    """

    definition: ImageDefinition
    pins: Pins
    parent: Plan | None
    mods: tuple[Mod, ...]
    steps: tuple[Step, ...]
    files: dict[str, StagedFile]
    targets: dict[str, Any]
    versions: dict[str, Version]
    checks: tuple[ImageCheck, ...]
    epoch: int
    warnings: tuple[str, ...]

    @property
    def repository(self) -> str:
        return self.definition.repository

    @property
    def chain(self) -> tuple[Plan, ...]:
        """The plans of all images that are built, parents first."""
        return (*(self.parent.chain if self.parent else ()), self)

    @property
    def input_hash(self) -> str:
        """The Merkle hash over all steps: the same inputs give the same hash on every machine."""
        return input_hash(self.steps)


def input_hash(steps: tuple[Step, ...]) -> str:
    """SHA-256, chained from step to step, over the name and the inputs of each."""
    so_far = ""
    for step in steps:
        text = json.dumps([so_far, step.name, step.takes], sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        so_far = hashlib.sha256(text.encode()).hexdigest()
    return f"sha256:{so_far}"

"""A plan is pure data that describes a build completely, before anything is built."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from builder.base.values import dataclass

if TYPE_CHECKING:
    from builder.definitions.image import ImageDefinition
    from builder.definitions.mod import Mod, ModCheck
    from builder.lock.model import Pins, Version


# The files of a build directory, by path: the files of the plan, and the records of the build.

BAKE = "bake.json"
PLAN = "plan.json"
RECORD = "images.lock"
ADOPTED = "adopted.json"
# The distribution's packages that the build installed, as an index; empty before the build.
PACKAGES = "distribution-packages.txt"
# Text that users review, and the files of mods. The largest files are vendored pull requests.
LARGEST_FILE = 256 << 20
LARGEST_BUILD = 1 << 30
MOST_FILES = 100_000

# The layers of the image, the lowest first. A rebuild compares its layers with them.
LAYERS = "layers.txt"
_TOP = frozenset({BAKE, PLAN, RECORD, ADOPTED, LAYERS})
_LOCKED = re.compile(r"locked-[0-9a-f]{16}\.txt")  # the packages whose digests are in RECORD
_NAME = "[A-Za-z0-9][A-Za-z0-9._+-]*"
_OF_PART = re.compile(
    r"Dockerfile|build-metadata\.yaml|distribution-packages\.txt|parts/(?:apt|bake-mod|step)\.sh"
    rf"|python/{_NAME}\.txt|patches/{_NAME}\.patch"
)
# Files of tools and of git: never part of a mod (``mod_files``).
_NEVER = frozenset({".git", ".DS_Store", "__MACOSX", "__pycache__"})


def belongs(path: str, mods: Mapping[str, Collection[str]]) -> bool:
    """True if ``path`` can be a file of a build directory of these definitions. ``mods`` are the mods of each
    definition, by its name. The last definition has the empty name, and its files are at the top; its parents have
    folders."""
    own = bool(_OF_PART.fullmatch(_within(path, mods)[1]))
    return own or is_record(path) or may_be_executable(path, mods)


def is_record(path: str) -> bool:
    """True for a record of the whole build, which belongs to no definition."""
    return path in _TOP or bool(_LOCKED.fullmatch(path))


def may_be_executable(path: str, mods: Mapping[str, Collection[str]]) -> bool:
    """True for a file of a mod: only such files may be executable."""
    definition, inside = _within(path, mods)
    head, _, below = inside.partition("/")
    name, _, file = below.partition("/")
    return bool(file) and head == "mods" and name in mods.get(definition, ()) and _NEVER.isdisjoint(file.split("/"))


def _within(path: str, mods: Mapping[str, Collection[str]]) -> tuple[str, str]:
    """The definition of a path, and the path relative to its part."""
    first, _, rest = path.partition("/")
    return (first, rest) if rest and first in mods else ("", path)


# The plan.

WORKSPACE = "/workspace/vllm"


@dataclass(frozen=True)
class StagedFile:
    """A file of a build directory."""

    content: bytes
    executable: bool = False


def files_hash(files: Mapping[str, StagedFile]) -> str:
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
    """A check of the finished image, its mod, and the text of its script, if any."""

    owner: str
    check: ModCheck
    script: str | None = None


@dataclass(frozen=True)
class Plan:
    """The plan of a build. ``parent`` is the plan of the parent image, which is built as well. ``files`` are the files
    of the build directory, by path, and ``targets`` the targets of its bake file, by name. ``epoch`` is the date of the
    image in seconds since 1970, from the pinned sources. ``warnings`` are shown before the build."""

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
        return (*(self.parent.chain if self.parent else ()), self)

    @property
    def input_hash(self) -> str:
        """The Merkle hash over all steps. The same inputs give the same hash on every machine."""
        return input_hash(self.steps)


def input_hash(steps: tuple[Step, ...]) -> str:
    """The first 20 hex digits of a SHA-256 over the name and the inputs of each step, chained from step to step. They
    distinguish builds, and fit in a line of images.lock."""
    so_far = ""
    for step in steps:
        text = json.dumps([so_far, step.name, step.takes], sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        so_far = hashlib.sha256(text.encode()).hexdigest()
    return so_far[:20]

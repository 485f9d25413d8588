"""A plan is pure data that describes a build completely, computed before anything is done."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from builder.base.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from builder.definitions.image import ImageDefinition
    from builder.definitions.mod import Mod, ModCheck
    from builder.lock.model import Pins, Version


# The files that a build directory has, by path: those of a plan, and those that record what came of it.

BAKE = "bake.json"
PLAN = "plan.json"
RECORD = "images.lock"
ADOPTED = "adopted.json"
# The packages of the distribution that a build has installed, as an index; empty until it has.
PACKAGES = "distribution-packages.txt"
# Text that users review, and the files of mods; a vendored pull request is the largest of it.
LARGEST_FILE = 256 << 20
LARGEST_BUILD = 1 << 30
MOST_FILES = 100_000

# The layers of the image, the lowest first: tells which are other ones where it is built again.
LAYERS = "layers.txt"
_TOP = frozenset({BAKE, PLAN, RECORD, ADOPTED, LAYERS})
_LOCKED = re.compile(r"locked-[0-9a-f]{16}\.txt")  # the packages that RECORD has the digests of
_NAME = "[A-Za-z0-9][A-Za-z0-9._+-]*"
_OF_PART = re.compile(
    r"Dockerfile|build-metadata\.yaml|distribution-packages\.txt|parts/(?:apt|bake-mod|step)\.sh"
    rf"|python/{_NAME}\.txt|patches/{_NAME}\.patch"
)
# Files that tools leave behind, and git's own: never part of a mod (``mod_files``).
_NEVER = frozenset({".git", ".DS_Store", "__MACOSX", "__pycache__"})


def belongs(path: str, mods: Mapping[str, Collection[str]]) -> bool:
    """True if a build directory of these definitions has a file ``path``. ``mods`` has the mods of each, by name; the
    files of the last definition, called by the empty name, lie at the top, those of its parents in their folders."""
    own = bool(_OF_PART.fullmatch(_within(path, mods)[1]))
    return own or is_record(path) or may_be_executable(path, mods)


def is_record(path: str) -> bool:
    """True for a file that records the build as a whole: it is of none of the definitions."""
    return path in _TOP or bool(_LOCKED.fullmatch(path))


def may_be_executable(path: str, mods: Mapping[str, Collection[str]]) -> bool:
    """True for the file of a mod, the only ones whose execute bit counts."""
    definition, inside = _within(path, mods)
    head, _, below = inside.partition("/")
    name, _, file = below.partition("/")
    return bool(file) and head == "mods" and name in mods.get(definition, ()) and _NEVER.isdisjoint(file.split("/"))


def _within(path: str, mods: Mapping[str, Collection[str]]) -> tuple[str, str]:
    """The definition that a path belongs to, and the path within its part."""
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
    """A check of the finished image, the mod that it belongs to, and the text of its script, if it has one."""

    owner: str
    check: ModCheck
    script: str | None = None


@dataclass(frozen=True)
class Plan:
    """The plan of a build. If the definition has a parent, its image is built, too; ``parent`` is its plan. ``files``
    are the build directory's, by path; ``targets`` those of its bake file, by name; ``epoch`` is the date that the
    image carries, in seconds since 1970, taken from the pinned sources; ``warnings`` are shown beforehand."""

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
        """The Merkle hash over all steps: the same inputs give the same hash on every machine."""
        return input_hash(self.steps)


def input_hash(steps: tuple[Step, ...]) -> str:
    """The first 20 hex digits of a SHA-256, chained from step to step, over the name and the inputs of each: enough
    to tell builds apart, and short enough for a line of images.lock."""
    so_far = ""
    for step in steps:
        text = json.dumps([so_far, step.name, step.takes], sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        so_far = hashlib.sha256(text.encode()).hexdigest()
    return so_far[:20]

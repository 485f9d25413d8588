"""The files of two builds in segments that can be taken from either: the difference as axes, and any mixture of
it.

It works on the recorded build directories, and not on templates and pins: those say what would be built today. A value
that a text takes from a source (a version, a commit, the digest of the base) is a segment of that source's, so that the
text around it is of the template alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.bisecting import stages, values
from builder.bisecting.difference import Axis
from builder.plan import bake, layout
from builder.plan.model import StagedFile

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from builder.bisecting.values import SourceValue

MOUNT = "source=patches,target="
"""The mount of the folder of pull requests in a Dockerfile, which has to be there."""


@dataclass(frozen=True)
class Segment:
    """A part of a file as the old and the new build have it, and the unit that decides which is taken: none where both
    are the same. A ``key`` names a value that a point of the unit has, too."""

    old: bytes
    new: bytes
    unit: str = ""
    key: str = ""

    def chosen(self, taken: Collection[str], chosen: Mapping[str, str]) -> bytes:
        if self.unit not in taken:
            return self.old
        # The value of a point stands in place of a new one: a package that the new build lacks is at no point either.
        return chosen[self.key].encode() if self.new and self.key in chosen else self.new


@dataclass(frozen=True)
class SegmentedFile:
    """A file of a build directory in segments, in which ``values`` are marked; ``old`` and ``new`` are the file's
    execute bits, None where a build does not have it."""

    path: str
    segments: tuple[Segment, ...]
    old: bool | None
    new: bool | None
    values: tuple[SourceValue, ...] = ()

    def mixed(self, taken: Collection[str], chosen: Mapping[str, str]) -> StagedFile | None:
        """The file with the segments of the units ``taken`` as the new build has them; None where it is not there."""
        is_new = any(segment.unit in taken for segment in self.segments)
        if (self.old is None and not is_new) or (self.new is None and is_new):
            return None
        executable = self.new if self.old is None or (is_new and self.new is not None) else self.old
        content = b"".join(segment.chosen(taken, chosen) for segment in self.segments)
        return StagedFile(values.filled(content, self.values, taken, chosen), bool(executable))


@dataclass(frozen=True)
class SourceTree:
    """The tree of a source taken from git, as ``URL#COMMIT``; empty on the side that has none."""

    name: str
    unit: str
    old: str
    new: str

    @property
    def url(self) -> str:
        return self.new.partition("#")[0]

    @property
    def old_commit(self) -> str:
        return self.old.partition("#")[2]

    @property
    def new_commit(self) -> str:
        return self.new.partition("#")[2]


@dataclass(frozen=True)
class MixedPart:
    """A definition of the chain: its trees, and the date of its image, which stays that of the old build."""

    definition: str
    epoch: int
    trees: tuple[SourceTree, ...]


@dataclass(frozen=True)
class Difference:
    """Two builds, and on which axes they differ. ``axis_of`` has the axis of each unit."""

    platform: str
    files: tuple[SegmentedFile, ...]
    parts: tuple[MixedPart, ...]
    axis_of: Mapping[str, str]

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes, those that are the cheapest to change first."""
        units = dict.fromkeys(
            (
                *(segment.unit for file in self.files for segment in file.segments if segment.unit),
                *(value.unit for file in self.files for value in file.values),
                *(tree.unit for part in self.parts for tree in part.trees if tree.old != tree.new),
            )
        )
        rows: dict[str, list[str]] = {}
        for unit in units:
            rows.setdefault(self.axis_of[unit], []).append(unit)
        return tuple(Axis(name, tuple(rows[name])) for name in sorted(rows, key=_rank))


_RANKS = (
    "mod",
    "template",
    "pull requests",
    "Python packages",
    "flashinfer",
    "vllm",
    "distribution packages",
    "base image",
)


def _rank(axis: str) -> tuple[int, str]:
    """The later a step stands in the image, the less has to be made anew for it."""
    first = axis.partition(" ")[0]
    return next((place for place, name in enumerate(_RANKS) if name in (axis, first)), len(_RANKS)), axis


def files(difference: Difference, taken: Collection[str], chosen: Mapping[str, str]) -> dict[str, StagedFile]:
    """The files of a mixture: those of the units ``taken`` as the new build has them. ``chosen`` replaces what a point
    has in its place: the commit of a source, the line of a package."""
    mixed = {file.path: made for file in difference.files if (made := file.mixed(taken, chosen))}
    for part in difference.parts:
        folder = f"{part.definition}/" if part.definition else ""
        text = stages.named(mixed[f"{folder}Dockerfile"].content)
        mixed[f"{folder}Dockerfile"] = StagedFile(text)
        if MOUNT.encode() in text and not any(path.startswith(f"{folder}patches/") for path in mixed):
            mixed[f"{folder}patches/none.patch"] = StagedFile(b"")
    return mixed


def targets(difference: Difference, taken: Collection[str], chosen: Mapping[str, str]) -> dict[str, object]:
    """The bake targets of a mixture, without labels."""
    made: dict[str, object] = {}
    parent = ""
    for part in difference.parts:
        trees = {tree.name: address for tree in part.trees if (address := _address(tree, taken, chosen))}
        folder = part.definition
        records = f"{folder}/{layout.PACKAGES}".removeprefix("/") in {file.path for file in difference.files}
        target = bake.target(difference.platform, part.epoch, trees, parent or None, records_packages=records)
        if folder:
            target["context"] = folder
            target |= {"secret": [bake.packages_secret(folder)]} if records else {}
        made[folder or bake.TARGET] = target
        parent = part.definition
    return made


def _address(tree: SourceTree, taken: Collection[str], chosen: Mapping[str, str]) -> str:
    address = tree.new if tree.unit in taken else tree.old
    commit = chosen.get(f"{tree.unit} commit")
    return f"{address.partition('#')[0]}#{commit}" if commit and address else address

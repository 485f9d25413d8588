"""The search for a culprit is a pure function from the known verdicts to the next question.

The difference between two builds and its mixtures come first, then the segments of texts, and the candidates.
The order of bisection, the trials, the search, and the steps of a build follow.
The search starts again from all verdicts each time, so it has no other state.
Everything is read from recorded build directories, and never from today's templates or pins.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from builder.definitions.image import PACKAGES_BUILT_FROM
from builder.plan import making, plan_model
from builder.plan.plan_model import StagedFile

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from builder.numbers.build_directory import BuildDirectory, BuildPart


# The difference between two numbers as the search sees it: axes, and what can be taken over one by one on each.


@dataclass(frozen=True)
class Axis:
    """One side on which two numbers differ: the base image, vLLM, the Python packages, a mod, the template, the flags
    of the recipe. ``units`` are what can be taken from either number by itself, in a fixed order; a name is used
    once."""

    name: str
    units: tuple[str, ...]


def is_inside_axis(axes: Iterable[Axis], tried: BisectCandidate) -> bool:
    """True for a candidate that takes a part of an axis, or is at a point between two ends."""
    counts = ((len(set(axis.units) & set(tried.taken)), len(axis.units)) for axis in axes)
    return bool(tried.points) or any(0 < taken < every for taken, every in counts)


@dataclass(frozen=True)
class Row:
    """The points strictly between two of a unit, in their order: commits, versions. ``after`` and ``before`` are empty
    for the unit's ends."""

    unit: str
    after: str
    before: str
    points: tuple[str, ...]


@dataclass(frozen=True)
class BisectSubject:
    """The subject of a search: the numbers in their order, from the end that counts as good to the one that is bad.

    ``axes`` tells the difference of two neighbours among them, the cheapest to change first. ``impossible`` says why a
    candidate cannot exist, and is empty where it may: a FlashInfer that the vLLM does not take. With ``find_fix`` the
    first number fails, the last one passes, and what mended it is looked for. ``single`` where the judge never gives
    two answers for one image."""

    numbers: tuple[int, ...]
    axes: Callable[[int, int], tuple[Axis, ...]]
    impossible: Callable[[int, int, frozenset[str]], str] = field(default=lambda *_: "")
    find_fix: bool = False
    single: bool = False


# The stages of a Dockerfile that mods with scripts get: numbered in their order, each on the one before. Which mods
# there are decides their numbers, so they are left open in a text that is to be mixed, and given at its end.

_BELOW, _OWN = "\0below\0", "\0mod\0"
_MOD_STAGE = re.compile(r"^FROM (?P<below>\S+) AS mod-(?P<own>\S+)$", re.MULTILINE)
_MOUNT = re.compile(r"(?<=--mount=type=bind,from=)\S+(?=,target=/run/builder/below,rw)")
_NAMED = re.compile(rb"^FROM .* AS (\S+)$")


def opened(dockerfile: str) -> str:
    """The text with these stages left open."""
    return _MOUNT.sub(_BELOW, _MOD_STAGE.sub(f"FROM {_BELOW} AS {_OWN}", dockerfile))


def named(dockerfile: bytes) -> bytes:
    """The text with every open stage named."""
    below, current, number = b"", b"", 0
    lines = []
    for line in dockerfile.splitlines(keepends=True):
        if _OWN.encode() in line:
            number += 1
            below = current
            line = line.replace(_OWN.encode(), b"mod-%d" % number)  # noqa: PLW2901
        line = line.replace(_BELOW.encode(), below)  # noqa: PLW2901
        if stage := _NAMED.match(line.rstrip(b"\n")):
            current = stage[1]
        lines.append(line)
    return b"".join(lines)


# The values in rendered texts that come from a source: its version, its commit, its date; the base image.

_COMMIT = re.compile("[0-9a-f]{40}")
BASE = "base image"
_MARK = "\0value %d\0"
# A longer version goes on with a number or one of these; a file's name with its suffix.
_NO_LONGER = r"(?!\w|\.(?:\d|dev|post))"
_DATE = re.compile(r"^export SOURCE_DATE_EPOCH='?(?P<date>\d+)'?$", re.MULTILINE)


@dataclass(frozen=True)
class SourceValue:
    """A value that two builds have from one unit, as either has it; ``key`` names it among those that points have."""

    unit: str
    key: str
    old: str
    new: str


def of_part(old: BuildPart, new: BuildPart) -> tuple[SourceValue, ...]:
    """The values that differ between two builds of one definition."""
    values = []
    for source in sorted(old.takes.keys() & new.takes.keys()):
        before, after = old.takes[source], new.takes[source]
        if source == "base":
            values.append(SourceValue(BASE, BASE, _base(before), _base(after)))
        elif not source.endswith("packages") and "version" in before and "version" in after:
            if "commit" in before and "commit" in after:
                values.append(SourceValue(source, f"{source} commit", before["commit"], after["commit"]))
            values.append(SourceValue(source, f"{source} version", before["version"], after["version"]))
    return tuple(value for value in values if value.old != value.new)


def of_dates(old: Sequence[str], new: Sequence[str], sources: Sequence[str]) -> Iterator[SourceValue]:
    """The dates of the sources' trees that differ in the instructions that build them."""
    for source in sources:
        before, after = _date(old, source), _date(new, source)
        if before and after and before != after:
            yield SourceValue(source, f"{source} date", before, after)


def of_indexes(old: str, new: str, abbreviated: Sequence[SourceValue]) -> Iterator[SourceValue]:
    """The whole commits of sources taken as wheels, in the addresses of the indexes that two texts name;
    ``abbreviated`` has their first digits."""
    for value in abbreviated:
        if value.key == f"{value.unit} commit" and not _COMMIT.fullmatch(value.old):
            before, after = (
                re.search(rf"(?<=/){re.escape(digits)}[0-9a-f]{{{40 - len(digits)}}}(?![0-9a-f])", text)
                for text, digits in ((old, value.old), (new, value.new))
            )
            if before and after:
                yield SourceValue(value.unit, f"{value.unit} index", before[0], after[0])


def _date(instructions: Sequence[str], source: str) -> str:
    mount = f"from={making.source_context(source)},"
    dates = (_DATE.search(text) for text in instructions if mount in text)
    return next((date["date"] for date in dates if date), "")


def _base(takes: Mapping[str, str]) -> str:
    content, requested = takes.get("content", ""), takes.get("image", "")
    return requested if content.startswith("local:") else f"{requested}@{content}"


def marked_value(text: str, values: Sequence[SourceValue], *, is_new: bool) -> str:
    """The text with a mark in place of each value, so that two texts differ in what else differs."""
    for number, value in enumerate(values):
        written = value.new if is_new else value.old
        bounds = ("", "") if _COMMIT.fullmatch(written) else (r"(?<![\w.])", _NO_LONGER)
        text = re.sub(f"{bounds[0]}{re.escape(written)}{bounds[1]}", _MARK % number, text)
    return text


def filled(text: bytes, values: Sequence[SourceValue], taken: Collection[str], chosen: Mapping[str, str]) -> bytes:
    """A marked text with its values: those of the units ``taken`` are the new ones, or those that are ``chosen``."""
    for number, value in enumerate(values):
        written = chosen.get(value.key, value.new) if value.unit in taken else value.old
        text = text.replace((_MARK % number).encode(), written.encode())
    return text


# The files of two builds in segments that can be taken from either: the difference as axes, and any mixture of it. It
# works on the recorded build directories, and not on templates and pins: those say what would be built today. A value
# that a text takes from a source (a version, a commit, the digest of the base) is a segment of that source's, so that
# the text around it is of the template alone.

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
        return StagedFile(filled(content, self.values, taken, chosen), bool(executable))


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
        text = named(mixed[f"{folder}Dockerfile"].content)
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
        records = f"{folder}/{plan_model.PACKAGES}".removeprefix("/") in {file.path for file in difference.files}
        target = making.bake_target(difference.platform, part.epoch, trees, parent or None, records_packages=records)
        if folder:
            target["context"] = folder
            target |= {"secret": [making.packages_secret(folder)]} if records else {}
        made[folder or making.TARGET] = target
        parent = part.definition
    return made


def _address(tree: SourceTree, taken: Collection[str], chosen: Mapping[str, str]) -> str:
    address = tree.new if tree.unit in taken else tree.old
    commit = chosen.get(f"{tree.unit} commit")
    return f"{address.partition('#')[0]}#{commit}" if commit and address else address


# Texts in tokens, and those of two texts side by side.

_HEREDOC = re.compile(r"<<-?\s*(?P<quote>['\"]?)(?P<word>\w+)(?P=quote)")
_TITLE = re.compile(r"<<-?\s*['\"]?\w+['\"]?\n# (.+)$", re.MULTILINE)
# Comments, arguments, and the stage that a mod with a script gets belong to the instruction that follows.
_LEADING = re.compile(r"\s*(?:#.*)?$|ARG\s|FROM \0below\0 AS \0mod\0$")


def instructions(dockerfile: str) -> list[str]:
    """The instructions of a Dockerfile, each with the lines in front of it that belong to it; joined, they are the
    text."""
    tokens, current, end = [], "", ""
    for line in dockerfile.splitlines(keepends=True):
        is_leading = not end and not current.endswith("\\\n") and is_leading_line(line)
        current += line
        if end:
            end = "" if line.strip() == end else end
        elif heredoc := (None if is_leading else _HEREDOC.search(line)):
            end = heredoc["word"]
        if not is_leading and not end and not line.rstrip("\n").endswith("\\"):
            tokens.append(current)
            current = ""
    return [*tokens, current] if current else tokens


def is_leading_line(line: str) -> bool:
    """True for a line that belongs to the instruction that follows."""
    return bool(_LEADING.match(line.rstrip("\n")))


def title_of(instruction: str) -> str:
    """The comment with which the script of an instruction begins; empty where it has none."""
    comment = _TITLE.search(instruction)
    return comment[1] if comment else ""


def pairs(old: Sequence[str], new: Sequence[str], key: Callable[[str], str] = str) -> Iterator[tuple[str, str]]:
    """Yields the tokens of two texts in their order: two with the same ``key`` together, each of the others with an
    empty one."""
    matcher = SequenceMatcher(None, list(map(key, old)), list(map(key, new)), autojunk=False)
    for tag, old_start, old_end, new_start, new_end in matcher.get_opcodes():
        if tag == "equal":
            yield from zip(old[old_start:old_end], new[new_start:new_end], strict=True)
        else:
            yield from ((token, "") for token in old[old_start:old_end])
            yield from (("", token) for token in new[new_start:new_end])


# Two recorded builds, cut into segments that can be taken from either.

if TYPE_CHECKING:
    Files = Mapping[str, StagedFile]

PACKAGE_KEY = "package "
TEMPLATE, PULLS, PACKAGES, DISTRIBUTION = "template", "pull requests", "Python packages", "distribution packages"
_MOD = re.compile(r"(?:source=mods/|^# mod )(?P<name>[A-Za-z0-9][A-Za-z0-9._+-]*)", re.MULTILINE)
_PATCH = re.compile(r"(?P<source>[a-z]+)-(?P<number>\d+)\.patch")
_METADATA = "build-metadata.yaml"


@dataclass(frozen=True)
class RecordedBuild:
    """A build directory with its files, by path."""

    directory: BuildDirectory
    files: Files


def difference(old: RecordedBuild, new: RecordedBuild, platform: str) -> Difference | None:
    """The difference between two builds; None where they are of other chains of definitions, so that nothing in one
    has a place in the other."""
    before = {part.definition: part for part in old.directory.parts}
    after = {part.definition: part for part in new.directory.parts}
    if list(before) != list(after):
        return None
    axis_of: dict[str, str] = {}
    files: list[SegmentedFile] = []
    parts = []
    for name, part in before.items():
        cut = _Part(name, part, after[name], axis_of)
        files += cut.files(*(_of_part(build.files, name, before.keys()) for build in (old, new)))
        epoch = str(part.target.get("args", {}).get("SOURCE_DATE_EPOCH", ""))
        parts.append(MixedPart(name, int(epoch) if epoch.isdecimal() else 0, cut.trees()))
    return Difference(platform, tuple(files), tuple(parts), axis_of)


def _of_part(files: Files, name: str, parts: Collection[str]) -> dict[str, StagedFile]:
    """The files of a definition, by the path below its folder."""
    if name:
        return {path.removeprefix(f"{name}/"): file for path, file in files.items() if path.startswith(f"{name}/")}
    others = {*parts, plan_model.PLAN, plan_model.BAKE, plan_model.RECORD, plan_model.LAYERS}
    return {path: file for path, file in files.items() if path.partition("/")[0] not in others}


class _Part:
    """The files of one definition in both builds, cut up."""

    def __init__(self, name: str, old: BuildPart, new: BuildPart, axis_of: dict[str, str]) -> None:
        self.name, self.old, self.new, self.axis_of = name, old, new, axis_of
        taken = {
            source
            for part in (old, new)
            for source, takes in part.takes.items()
            if "version" in takes and not source.endswith("packages")
        }
        self.sources = sorted(old.contexts.keys() | new.contexts.keys() | taken)
        self.values = of_part(old, new)
        for value in self.values:
            axis_of[value.unit] = value.unit
        moved = old.contexts.keys() ^ new.contexts.keys()
        self.moved = re.compile(rf"\b(?:{'|'.join(moved)})\b") if moved else None
        self.lone: dict[str, str] = {}
        self.marked: tuple[SourceValue, ...] = ()

    def unit(self, name: str, axis: str) -> str:
        """The unit of this name, with its definition where that is a parent of the image's own."""
        full = f"{self.name}: {name}" if self.name and name not in self.axis_of else name
        self.axis_of.setdefault(full, axis)
        return full

    def trees(self) -> tuple[SourceTree, ...]:
        made = []
        for source in sorted(self.old.contexts.keys() | self.new.contexts.keys()):
            old, new = ("#".join(part.contexts.get(source, ("", ""))).strip("#") for part in (self.old, self.new))
            made.append(SourceTree(source, self.unit(source, source), old, new))
        return tuple(made)

    def files(self, old: Files, new: Files) -> Iterator[SegmentedFile]:
        self.lone = dict(self._lone(old, new))
        for path in sorted(old.keys() | new.keys()):
            before, after = old.get(path), new.get(path)
            if path == plan_model.PACKAGES and not (before and after):
                continue  # one of the builds is of before packages were recorded
            full = f"{self.name}/{path}" if self.name else path
            bits = (before.executable if before else None, after.executable if after else None)
            segments = tuple(self._segments(path, before, after))
            marked = {"Dockerfile": self.marked, _METADATA: self.values}.get(path, ())
            yield SegmentedFile(full, segments, *bits, marked)

    def _segments(self, path: str, before: StagedFile | None, after: StagedFile | None) -> Iterator[Segment]:
        old, new = (file.content if file else b"" for file in (before, after))
        if path.startswith("python/"):
            yield from self._packages(path, old.decode(), new.decode())
        elif before and after and before == after:
            yield Segment(old, new)
        elif path == "Dockerfile":
            yield from self._dockerfile(old.decode(), new.decode())
        elif path == _METADATA and before and after:
            text = marked_value(old.decode(), self.values, is_new=False).encode()
            yield Segment(text, text)  # what else differs in it is of what differs elsewhere
        elif path == plan_model.PACKAGES:
            # The first line says when the packages were installed.
            lists = [[line for line in side.splitlines() if not line.startswith(b"#")] for side in (old, new)]
            if lists[0] == lists[1]:
                yield Segment(old, old)
            else:
                yield Segment(old, new, self.unit(DISTRIBUTION, DISTRIBUTION))
        elif path.startswith("patches/") and (patch := _PATCH.search(path)):
            yield Segment(old, new, self.unit(f"pull request {patch['source']}#{patch['number']}", PULLS))
        elif path.startswith("mods/"):
            name = f"mod {path.split('/')[1]}"
            yield Segment(old, new, self.unit(name, name))
        else:
            yield Segment(old, new, self.unit(TEMPLATE, TEMPLATE))

    def _packages(self, path: str, old: str, new: str) -> Iterator[Segment]:
        before, after = (
            {package.name: making.requirement_line(package) for package in making.read_requirements(text)}
            for text in (old, new)
        )
        names = (left or right for left, right in pairs(list(before), list(after)))
        for name in dict.fromkeys(names):
            texts = [side.get(name, "").encode() for side in (before, after)]
            if texts[0] == texts[1]:
                yield Segment(texts[0], texts[1])
                continue
            is_build = path.endswith("/build.txt")
            unit = self._source_of(name) or self.unit(
                "build packages" if is_build else f"{PACKAGE_KEY}{name}", PACKAGES
            )
            yield Segment(texts[0], texts[1], unit, "" if is_build else f"{PACKAGE_KEY}{name}")

    def _lone(self, old: Files, new: Files) -> Iterator[tuple[str, str]]:
        """Yields the requirement files that only one build has, for packages of one source alone: those of an index
        that the source is taken from. The lines that install them are of that source, too."""
        for path in old.keys() ^ new.keys():
            if path.startswith("python/"):
                packages = making.read_requirements((old.get(path) or new[path]).content.decode())
                sources = {self._source_of(package.name) for package in packages}
                if len(sources) == 1 and (source := sources.pop()):
                    yield path.removeprefix("python/"), source

    def _source_of(self, package: str) -> str:
        """The source that a package is the wheel of; empty where it is of none."""
        for source in self.sources:
            is_own = package in PACKAGES_BUILT_FROM.get(source, (source,)) or package.startswith(f"{source}-")
            if is_own and source in self.axis_of:
                return source
        return ""

    def _dockerfile(self, old: str, new: str) -> Iterator[Segment]:
        texts = [instructions(opened(text)) for text in (old, new)]
        self.marked = (
            *self.values,
            *of_dates(texts[0], texts[1], self.sources),
            *of_indexes(old, new, self.values),
        )
        sides = [
            [marked_value(token, self.marked, is_new=bool(side)) for token in text] for side, text in enumerate(texts)
        ]
        mounts = old.count(MOUNT) != new.count(MOUNT)
        for before, after in pairs(sides[0], sides[1], _key):
            if not before or not after or _MOD.search(before):
                yield from self._changed([(before, after)])
                continue
            lines = pairs(before.splitlines(keepends=True), after.splitlines(keepends=True))
            if mounts:  # a pull request needs it, and it is harmless without one
                lines = ((left or right,) * 2 if MOUNT in left + right else (left, right) for left, right in lines)
            for _, stretch in itertools.groupby(lines, lambda pair: pair[0] == pair[1]):
                yield from self._changed(list(stretch))

    def _changed(self, stretch: Sequence[tuple[str, str]]) -> Iterator[Segment]:
        """The segments of lines that stand together: those that name no unit are of the one that the others name."""
        for old, new in stretch:
            if old == new:
                yield Segment(old.encode(), new.encode())
                continue
            unit = self._named(old + new) or self._named("".join(map("".join, stretch)))
            yield Segment(old.encode(), new.encode(), unit or self.unit(TEMPLATE, TEMPLATE))

    def _named(self, text: str) -> str:
        """The unit that a part of the Dockerfile names; empty where it names none."""
        if mod := _MOD.search(text):
            return self.unit(f"mod {mod['name']}", f"mod {mod['name']}")
        if patch := _PATCH.search(text):
            return self.unit(f"pull request {patch['source']}#{patch['number']}", PULLS)
        if self.moved and (source := self.moved.search(text)):
            return self.unit(source[0], source[0])
        return next((self.lone[file] for file in self.lone if file in text), "")


def _key(instruction: str) -> str:
    """The key of an instruction: a changed one keeps its mod, the title of its script, or its first line."""
    lines = [line for line in instruction.splitlines() if not is_leading_line(line)] or [instruction]
    if mod := _MOD.search(instruction):
        return f"{lines[0].partition(' ')[0]} mod {mod['name']}"
    return title_of(instruction) or lines[0]


# A candidate: an image between two numbers, told by what it takes from which of them.


@dataclass(frozen=True, order=True)
class BisectCandidate:
    """The number ``old`` with everything in ``taken`` as ``new`` has it. ``points`` puts some of what
    is taken at another place between the two: a commit, a version. A number itself is ``old`` and ``new`` at once."""

    old: int
    new: int
    taken: tuple[str, ...] = ()
    points: tuple[tuple[str, str], ...] = ()

    @property
    def number(self) -> int | None:
        """The number that it is, None where it has to be made."""
        return self.old if self.old == self.new else None


def of_number(number: int) -> BisectCandidate:
    """The candidate that a numbered image is."""
    return BisectCandidate(number, number)


def mixed(old: int, new: int, taken: frozenset[str], points: Mapping[str, str]) -> BisectCandidate:
    """The candidate of these parts, always in the same order, so that it is known again."""
    return BisectCandidate(old, new, tuple(sorted(taken)), tuple(sorted(points.items())))


# The first bad one in a row: bisection with places that cannot be tried.

MOST_MISSES = 40


@dataclass(frozen=True)
class Edge:
    """The step from good to bad: the last place that is ``good`` and the first that is ``bad``; everything in between
    was tried and could not be told."""

    good: int
    bad: int

    @property
    def is_exact(self) -> bool:
        return self.bad == self.good + 1


def edge(count: int, verdict: Callable[[int], Word], most_misses: int = MOST_MISSES) -> Edge:
    """The step from good to bad among the places 0 to ``count`` - 1, of which the first is good and the last bad. It is
    left as wide as it is after ``most_misses`` in a row."""
    good, bad, misses = 0, count - 1, 0
    left = list(range(1, bad))
    while left and misses < most_misses:
        place = _next(left, misses)
        word = verdict(place)
        misses = 0 if word in {"good", "bad"} else misses + 1
        if word == "good":
            good = place
        elif word == "bad":
            bad = place
        left = [other for other in left if good < other < bad and other != place]
    return Edge(good, bad)


def _next(left: Sequence[int], misses: int) -> int:
    """The place to try: the middle. What cannot be tried comes in runs, so that each miss leads twice as far away from
    there, to either side in turn: a long run costs a few misses, and the halves stay nearly equal."""
    middle = len(left) // 2
    away = (1 << min(misses, 30)) - 1
    if away > middle // 2:
        return left[middle]
    return left[middle + (away if misses % 2 else -away)]


# The trials of candidates, and the verdicts that they allow: a probe may pass by luck, and fail by accident. Where no
# candidate ever gave two answers, one trial is a verdict. Where one did, the ends are tried `MOST_OF_ENDS` times, and
# the share of trials that fail there tells how many more it takes elsewhere: Wald's sequential test, until one side
# is a hundred times as likely as the other (https://en.wikipedia.org/wiki/Sequential_probability_ratio_test).

Word = Literal["good", "bad", "skip", "unclear"]

FEWEST_OF_ENDS = 3
MOST_OF_ENDS = 12
_MOST = 40
_MOST_AT_ONCE = 6
_SURE, _VERY_SURE = math.log(100), math.log(10_000)
# Ends whose shares of failures are closer than this cannot be told apart in a night.
_LEAST_DIFFERENCE = 0.25


@dataclass(frozen=True)
class Trial:
    """The outcome of trying a candidate, once or all times together: how often it ``passed`` and ``failed``.
    ``skipped`` says why it could not be tried at all, and is empty where it was. ``seconds`` is how long it took, and
    ``note`` what the judge said."""

    candidate: BisectCandidate
    passed: int = 0
    failed: int = 0
    skipped: str = ""
    seconds: float = 0.0
    note: str = ""

    @property
    def tries(self) -> int:
        return self.passed + self.failed


@dataclass(frozen=True)
class Noise:
    """The shares of trials that fail: of the end that passes, and of the one that fails. ``is_clean`` where no
    candidate gave two answers."""

    is_clean: bool
    passing: float
    failing: float

    def verdict(self, tally: Trial) -> Word | None:
        """The verdict that these trials allow, None where it takes more of them."""
        if tally.skipped:
            return "skip"
        if not tally.tries:
            return None
        if self.is_clean:
            return "bad" if tally.failed else "good"
        odds = self._odds(tally.passed, tally.failed)
        if abs(odds) >= _SURE:
            return "bad" if odds > 0 else "good"
        return "unclear" if tally.tries >= _MOST else None

    def lacking(self, tally: Trial, *, pivot: bool = False) -> int:
        """The number of trials after which there may be a verdict, if they agree with those so far. It takes more for a
        ``pivot``, on which all else rests: the last good one and the first bad one. A wrong verdict leads the search to
        itself, so it is enough to look twice here."""
        if tally.tries >= _MOST or tally.skipped:
            return 0
        if self.is_clean:
            return max(0, (FEWEST_OF_ENDS if pivot else 1) - tally.tries)
        odds = self._odds(tally.passed, tally.failed)
        missing = (_VERY_SURE if pivot else _SURE) - abs(odds)
        step = abs(self._odds(0, 1) if odds > 0 else self._odds(1, 0))
        return max(0, min(math.ceil(missing / step), _MOST_AT_ONCE, _MOST - tally.tries))

    def _odds(self, passed: int, failed: int) -> float:
        """The logarithm of how much likelier these trials are where the fault is."""
        odds = failed * math.log(self.failing / self.passing)
        return odds + passed * math.log((1 - self.failing) / (1 - self.passing))


def tallies(trials: Iterable[Trial]) -> dict[BisectCandidate, Trial]:
    """All trials, added up for each candidate; what was skipped once is not tried again."""
    sums: dict[BisectCandidate, Trial] = {}
    for trial in trials:
        own = sums.get(trial.candidate, Trial(trial.candidate))
        passed, failed = own.passed + trial.passed, own.failed + trial.failed
        sums[trial.candidate] = Trial(trial.candidate, passed, failed, own.skipped or trial.skipped)
    return sums


def noise(counted: Mapping[BisectCandidate, Trial], passing: BisectCandidate, failing: BisectCandidate) -> Noise:
    """The noise that the trials show, by those of the two ends; the end that should fail is ``failing``."""
    is_clean = not any(tally.passed and tally.failed for tally in counted.values())
    return Noise(is_clean, _share(counted.get(passing)), _share(counted.get(failing)))


def lacking_of_end(tally: Trial, *, is_clean: bool, single: bool) -> int:
    """The number of trials that an end still needs; one is enough where ``single``, for judges that never differ."""
    if tally.skipped:
        return 0
    wanted = 1 if single else FEWEST_OF_ENDS if is_clean else MOST_OF_ENDS
    return max(0, wanted - tally.tries)


def are_alike(shown: Noise) -> bool:
    """True where the ends fail nearly as often as each other: no number of trials tells the candidates apart."""
    return shown.failing - shown.passing < _LEAST_DIFFERENCE


def _share(tally: Trial | None) -> float:
    """The share of failures, drawn a little to the middle: a few trials never show that something cannot happen."""
    return (tally.failed + 0.5) / (tally.tries + 1) if tally else 0.5


# The search as a pure function: what is known so far → the next question, or what it comes to. It goes from the start
# each time: every verdict that is known is read off the trials, and the first that is missing is the question. So
# there is no state but the answers: a journal of them is enough to go on after anything, and what would be asked next
# is found by supposing an answer. ends → numbers → axes → units of each axis → points of each unit → the ends of what
# was found once more

_NOWHERE: Mapping[str, str] = {}
_MOST_MISSES_OF_UNITS = 4
Ending = Literal["found", "good end fails", "bad end passes", "alike", "end untried", "nothing differs"]


@dataclass(frozen=True)
class TryCandidate:
    """The question how a candidate does, asked ``times`` times at least."""

    candidate: BisectCandidate
    times: int = 1


@dataclass(frozen=True)
class ListPoints:
    """The question which points a unit has between two of its own, or between its ends where those are empty."""

    old: int
    new: int
    unit: str
    after: str = ""
    before: str = ""


Question: TypeAlias = "TryCandidate | ListPoints"


@dataclass(frozen=True)
class Culprit:
    """One part of what was found: a unit, and where it has points the last ``good`` and the first ``bad`` one. Those
    ``between`` could not be tried: any of them may be it, as may ``bad``."""

    axis: str
    unit: str
    good: str = ""
    bad: str = ""
    between: tuple[str, ...] = ()


@dataclass(frozen=True)
class Conclusion:
    """The end of a search. ``good`` and ``bad`` are the two candidates on either side, which differ in the
    ``culprits`` alone: together they make one of the other, and where ``joint``, they could not be told apart.
    ``steps`` are the candidates that it took beside the two ends, of which ``steps_on_axis`` are those that looked for
    the place on an axis."""

    ending: Ending
    good: BisectCandidate
    bad: BisectCandidate
    culprits: tuple[Culprit, ...] = ()
    joint: bool = False
    steps: int = 0
    steps_on_axis: int = 0


@dataclass(frozen=True)
class Answers:
    """All that is known: the trials, in their order, and the rows of points that were listed."""

    trials: tuple[Trial, ...] = ()
    rows: tuple[Row, ...] = field(default_factory=tuple)


class _OpenQuestion(Exception):  # noqa: N818 (a way out of the search, and no error)
    def __init__(self, question: Question) -> None:
        super().__init__()
        self.question = question


def next_step(subject: BisectSubject, answers: Answers) -> Question | Conclusion:
    """The next question, or the conclusion where none is open."""
    try:
        return _Search(subject, answers).conclusion()
    except _OpenQuestion as step:
        return step.question


def likely_next(subject: BisectSubject, answers: Answers, now: TryCandidate) -> tuple[BisectCandidate, ...]:
    """The candidates that are next, whichever way ``now`` is answered: what can be prepared meanwhile."""
    ahead = []
    for passed, failed in ((0, 1), (1, 0)):
        supposed = Trial(now.candidate, passed * now.times, failed * now.times)
        following = next_step(subject, Answers((*answers.trials, supposed), answers.rows))
        if isinstance(following, TryCandidate) and following.candidate != now.candidate:
            ahead.append(following.candidate)
    return tuple(dict.fromkeys(ahead))


@dataclass(frozen=True)
class _Span:
    """Two neighbouring numbers, one good and one bad, and the axes on which they differ."""

    old: int
    new: int
    axes: tuple[Axis, ...]

    @property
    def every(self) -> frozenset[str]:
        return frozenset(unit for axis in self.axes for unit in axis.units)

    def candidate(self, taken: frozenset[str], points: Mapping[str, str]) -> BisectCandidate:
        """The candidate with these units; a number where the candidate equals one."""
        if not taken or (taken == self.every and not points):
            return of_number(self.new if taken else self.old)
        return mixed(self.old, self.new, taken, points)


class _Search:
    """One pass over the answers."""

    def __init__(self, subject: BisectSubject, answers: Answers) -> None:
        self.subject = subject
        self.rows = {(row.unit, row.after, row.before): row for row in answers.rows}
        self.tallies = tallies(answers.trials)
        first, last = (of_number(subject.numbers[place]) for place in (0, -1))
        self.first, self.last = first, last
        ends = (last, first) if subject.find_fix else (first, last)
        self.noise: Noise = noise(self.tallies, *ends)
        self.tried = {trial.candidate for trial in answers.trials} - {first, last}

    def conclusion(self) -> Conclusion:
        ending = self._ending_of_ends()
        if ending:
            return self._ended(ending)
        numbers = self.subject.numbers
        step = edge(len(numbers), lambda place: self.verdict(of_number(numbers[place])))
        old, new = numbers[step.good], numbers[step.bad]
        for number in (old, new):  # everything after stands on these two
            self._require_sure(of_number(number))
        span = _Span(old, new, self.subject.axes(old, new))
        if not span.axes:
            return self._ended("nothing differs", of_number(old), of_number(new))
        chosen, joint = self._smallest(span)
        culprits, good, bad = self._located(span, chosen, joint=joint)
        for each in (good, bad):
            self._require_sure(each)
        on_axis = sum(is_inside_axis(span.axes, tried) for tried in self.tried)
        return Conclusion("found", good, bad, culprits, joint, len(self.tried), on_axis)

    def _ending_of_ends(self) -> Ending | None:
        for end in (self.first, self.last):
            tally = self._tally(end)
            times = lacking_of_end(tally, is_clean=self.noise.is_clean, single=self.subject.single)
            if times:
                raise _OpenQuestion(TryCandidate(end, times))
            if tally.skipped:
                return "end untried"
            wrong = tally.passed if (end == self.last) != self.subject.find_fix else tally.failed
            if wrong == tally.tries:
                return "bad end passes" if end == self.last else "good end fails"
        if not self.noise.is_clean and are_alike(self.noise):
            return "alike"
        return None

    def verdict(self, tried: BisectCandidate, span: _Span | None = None) -> Word:
        """The verdict on a candidate, seen from the direction of the search: the last number's is ``bad``. Those at the
        ends of the ``span`` were told before, and stay what they are."""
        if tried == self.first or (span and tried.number == span.old):
            return "good"
        if tried == self.last or (span and tried.number == span.new):
            return "bad"
        tally = self._tally(tried)
        word = self.noise.verdict(tally)
        if word is None:
            raise _OpenQuestion(TryCandidate(tried, self.noise.lacking(tally)))
        if self.subject.find_fix and word in {"good", "bad"}:
            return "bad" if word == "good" else "good"
        return word

    def _tally(self, tried: BisectCandidate) -> Trial:
        return self.tallies.get(tried, Trial(tried))

    def _require_sure(self, tried: BisectCandidate) -> None:
        """Asks again about what all else rests on: where the answers differ, every verdict is looked at anew."""
        if not self.subject.single and (times := self.noise.lacking(self._tally(tried), pivot=True)):
            raise _OpenQuestion(TryCandidate(tried, times))

    def _smallest(self, span: _Span) -> tuple[frozenset[str], bool]:
        """The units that are enough to make the old number fail, none of which can be left out; True where some of them
        could only be tried together."""
        groups = [frozenset(axis.units) for axis in span.axes]
        chosen, joint = self._culprits(span, groups, frozenset())
        for axis in span.axes:
            inside = [frozenset({unit}) for unit in axis.units if unit in chosen]
            if len(inside) > 1:
                rest = chosen - frozenset(axis.units)
                parts, also = self._culprits(span, inside, rest)
                chosen, joint = rest | parts, joint or also
        return chosen, joint

    def _culprits(
        self, span: _Span, groups: Sequence[frozenset[str]], always: frozenset[str]
    ) -> tuple[frozenset[str], bool]:
        """The smallest union of ``groups`` that fails together with what is ``always`` taken. All of them together do,
        and ``always`` alone does not.

        The first prefix of the row that fails ends with a culprit. With that one taken, the next is looked for in front
        of it, until nothing in front is needed: a logarithm of trials for each culprit
        (QuickXplain, https://cdn.aaai.org/AAAI/2004/AAAI04-027.pdf).
        """
        taken, joint, row = always, False, list(groups)
        while row and not (taken != always and self._word(span, taken) == "bad"):
            start, end = self._first_that_fails(span, taken, row, 0)
            if end - start > 1:  # the other way round, some may be told apart
                turned = [*row[:start], *row[start:end][::-1]]
                again = self._first_that_fails(span, taken, turned, start)
                if again[1] - again[0] < end - start:
                    row, (start, end) = turned, again
            joint = joint or end - start > 1
            taken = taken.union(*row[start:end])
            row = row[:start]
        return taken - always, joint

    def _first_that_fails(
        self, span: _Span, taken: frozenset[str], row: Sequence[frozenset[str]], start: int
    ) -> tuple[int, int]:
        """The places in ``row`` around the first group with which everything in front of it fails; nothing is asked of
        the first ``start`` ones."""

        def word(place: int) -> Word:
            return self._word(span, taken.union(*row[: start + place]))

        step = edge(len(row) - start + 1, word, most_misses=_MOST_MISSES_OF_UNITS)
        return start + step.good, start + step.bad

    def _word(self, span: _Span, taken: frozenset[str], points: Mapping[str, str] = _NOWHERE) -> Word:
        """The verdict on the old number with these units of the new one."""
        if self.subject.impossible(span.old, span.new, taken):
            return "skip"
        return self.verdict(span.candidate(taken, points), span)

    def _located(
        self, span: _Span, chosen: frozenset[str], *, joint: bool
    ) -> tuple[tuple[Culprit, ...], BisectCandidate, BisectCandidate]:
        """The culprits, each at its point where it has some, and the candidates on either side of the first one."""
        sides: tuple[BisectCandidate, BisectCandidate] | None = None
        culprits = []
        for axis in span.axes:
            for unit in (unit for unit in axis.units if unit in chosen):
                culprit = self._at_point(span, chosen, Culprit(axis.name, unit))
                culprits.append(culprit)
                sides = sides or (None if joint and not culprit.good else self._sides(span, chosen, culprit))
        good, bad = sides or (span.candidate(frozenset(), {}), span.candidate(chosen, {}))
        return tuple(culprits), good, bad

    def _at_point(self, span: _Span, chosen: frozenset[str], culprit: Culprit) -> Culprit:
        """The culprit between its two nearest points; between those of a merge's own commits where it is a merge."""
        key = (culprit.unit, culprit.good, culprit.bad)
        row = self.rows.get(key)
        if row is None:
            raise _OpenQuestion(ListPoints(span.old, span.new, *key))
        if not row.points:
            return culprit
        points = row.points
        step = edge(len(points) + 2, lambda place: self._word(span, chosen, {culprit.unit: points[place - 1]}))
        good = points[step.good - 1] if step.good else culprit.good
        bad = points[step.bad - 1] if step.bad <= len(points) else culprit.bad
        between = points[step.good : step.bad - 1]
        closer = Culprit(culprit.axis, culprit.unit, good, bad, between)
        return self._at_point(span, chosen, closer) if step.is_exact else closer

    def _sides(self, span: _Span, chosen: frozenset[str], culprit: Culprit) -> tuple[BisectCandidate, BisectCandidate]:
        unit = culprit.unit
        without = span.candidate(chosen - {unit}, {})
        good = span.candidate(chosen, {unit: culprit.good}) if culprit.good else without
        return good, span.candidate(chosen, {unit: culprit.bad} if culprit.bad else {})

    def _ended(
        self, ending: Ending, good: BisectCandidate | None = None, bad: BisectCandidate | None = None
    ) -> Conclusion:
        return Conclusion(ending, good or self.first, bad or self.last, steps=len(self.tried))


# The steps of a build by keys that are equal where BuildKit has their result already, to tell which of them another
# build has to run.

_FROM = re.compile(r"^FROM (?:--\S+ )*(?P<below>\S+)(?: AS (?P<own>\S+))?$", re.MULTILINE)
_STAGE = re.compile(r"(?:--mount=\S*\bfrom|--from)=(?P<name>[^,\s]+)")
_SOURCE = re.compile(r"--mount=(?P<options>\S*\bsource=(?P<path>[^,\s]+)\S*)")
_RUN = re.compile(r"^(?:RUN|COPY|ADD) .*", re.MULTILINE)
_COPY = re.compile(r"^(?:COPY|ADD) (?!.*--from=)", re.MULTILINE)


def titles(files: Mapping[str, StagedFile], targets: Mapping[str, Any]) -> dict[str, str]:
    """The title of each step that runs, as `building.step_times` has it, by its key."""
    steps: dict[str, str] = {}
    ends: dict[str, str] = {}
    for name, target in targets.items():
        folder = str(target["context"])
        inside = "" if folder == "." else f"{folder}/"
        own = {path.removeprefix(inside): file for path, file in files.items() if path.startswith(inside)}
        contexts = {
            key: ends.get(source.removeprefix("target:"), source) for key, source in target.get("contexts", {}).items()
        }
        for ends[name], title in _steps(own, contexts):
            if title:
                steps[ends[name]] = title
    return steps


def _steps(files: Mapping[str, StagedFile], contexts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the key of each instruction, with its title where it runs something."""
    stages = dict(contexts)
    stage = key = ""
    for text in instructions(files["Dockerfile"].content.decode()):
        if begun := _FROM.search(text):
            stage = begun["own"] or ""
            key = contexts.get(stage) or _hash("", stages.get(begun["below"], begun["below"]))
            title = ""
        else:
            key = _hash(key, text, *(stages.get(name, name) for name in _STAGE.findall(text)), *_mounted(text, files))
            title = title_of(text) or (run[0] if (run := _RUN.search(text)) else "")
        if stage and stage not in contexts:
            stages[stage] = key
        yield key, title


def _mounted(text: str, files: Mapping[str, StagedFile]) -> Iterator[str]:
    """Yields the digests of what an instruction takes from the build directory."""
    if _COPY.search(text):
        yield plan_model.files_hash(files)
    for mount in _SOURCE.finditer(text):
        if "from=" not in mount["options"]:
            path = mount["path"].strip("/")
            yield plan_model.files_hash(
                {name: file for name, file in files.items() if name == path or name.startswith(f"{path}/")}
            )


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def new_titles(steps: Mapping[str, str], *done: Mapping[str, str]) -> tuple[str, ...]:
    """The titles of the steps that none of the builds ``done`` has."""
    return tuple(title for key, title in steps.items() if not any(key in each for each in done))

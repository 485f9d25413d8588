"""Mixtures of two numbers: the units that can come from either number, and the build directory of any mixture.

Everything is read from recorded build directories: today's templates and pins only show what would be built today. If a
text contains a value from a source (a version, a commit, the digest of the base image), the value belongs to that
source. The text around the value then belongs to the template alone.
"""

from __future__ import annotations

import functools
import itertools
import re
from contextlib import suppress
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from builder.base.errors import FileProblemsError
from builder.base.values import dataclass, field, replace
from builder.building import bake
from builder.definitions.image import PACKAGES_BUILT_FROM
from builder.engine import images
from builder.lab.bisect.search import Axis
from builder.lab.changes import of_files
from builder.lock import layout
from builder.lock.model import BasePin, ImageName, Pins
from builder.numbers import build_directory
from builder.plan import making, plan_model
from builder.plan.plan_model import StagedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from builder.base.project import Project
    from builder.lab.bisect.search import BisectCandidate
    from builder.numbers.build_directory import BuildDirectory, BuildPart

    Files = Mapping[str, StagedFile]

RECIPE, TEMPLATE, BASE, WHOLE = "recipe", "template", "base image", "the whole image"
PACKAGE_KEY = "package "
PACKAGES = "Python packages"
_PATCHES, _DISTRIBUTION = "patches of sources", "distribution packages"
# The later a step is in the image, the less must be built again for a change. A change of the recipe needs no build.
_CHEAPEST_FIRST = (RECIPE, "mod", TEMPLATE, _PATCHES, PACKAGES, "flashinfer", "vllm", _DISTRIBUTION, BASE, WHOLE)
_PATCHES_MOUNT = "source=patches,target="


@dataclass(frozen=True)
class Segment:
    """A part of a text in the old and the new build, or a value in a text. Its ``unit`` decides which side is taken;
    the unit is empty if both sides are equal. A point of the unit may have another value under the same ``key``."""

    old: str
    new: str
    unit: str = ""
    key: str = ""

    def chosen(self, taken: Collection[str], values: Mapping[str, str]) -> str:
        if self.unit not in taken:
            return self.old
        # The value of a point replaces the new value. If the new build lacks a package, each point lacks it.
        return values.get(self.key, self.new) if self.new else ""


@dataclass(frozen=True)
class MixedFile:
    """A file of two builds; None if a build lacks it. The whole file belongs to ``unit``, or it consists of
    ``segments``, in which ``values`` are marked."""

    path: str
    old: StagedFile | None
    new: StagedFile | None
    unit: str = ""
    segments: tuple[Segment, ...] = ()
    values: tuple[Segment, ...] = ()

    def mixed(self, taken: Collection[str], values: Mapping[str, str]) -> StagedFile | None:
        """The file with the units ``taken`` from the new build; None if the file does not exist."""
        is_new = self.unit in taken or any(segment.unit in taken for segment in self.segments)
        side = self.new if is_new else self.old
        if side is None or not self.segments:
            return side
        text = "".join(segment.chosen(taken, values) for segment in self.segments)
        return StagedFile(filled(text, self.values, taken, values).encode(), side.executable)


@dataclass(frozen=True)
class SourceTree:
    """The tree of a source from git: its address and commit; empty for a build without this source from git."""

    name: str
    unit: str
    old: tuple[str, str]
    new: tuple[str, str]


@dataclass(frozen=True)
class NumberSpan:
    """The difference between two numbers. For each definition of their chain, ``parts`` has the date of the old image
    (seconds since 1970) and its trees. ``parts`` is empty if the two builds cannot be mixed. ``recipe`` has the
    segments of their recipes; empty if the recipe is the same. ``axis_of`` has the axis of each unit."""

    old: ImageName
    new: ImageName
    platform: str
    files: tuple[MixedFile, ...] = ()
    parts: Mapping[str, tuple[int, tuple[SourceTree, ...]]] = field(default_factory=dict)
    recipe: tuple[Segment, ...] = ()
    axis_of: Mapping[str, str] = field(default_factory=lambda: {WHOLE: WHOLE})

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes, cheapest change first."""
        units = (
            *(segment.unit for segment in self.recipe),
            *(unit for file in self.files for unit in (file.unit, *(segment.unit for segment in file.segments))),
            *(value.unit for file in self.files for value in file.values),
            *(tree.unit for tree in self.trees if tree.old != tree.new),
            *(() if self.parts else (WHOLE,)),
        )
        rows: dict[str, list[str]] = {}
        for unit in filter(None, dict.fromkeys(units)):
            rows.setdefault(self.axis_of.get(unit, RECIPE), []).append(unit)
        return tuple(Axis(name, tuple(rows[name])) for name in sorted(rows, key=_cost))

    @property
    def trees(self) -> tuple[SourceTree, ...]:
        return tuple(tree for _, trees in self.parts.values() for tree in trees)

    @property
    def segments(self) -> list[Segment]:
        return [segment for file in self.files for segment in file.segments]

    @property
    def bases(self) -> tuple[str, str]:
        """The base images of both sides, each with its digest; empty unless they are two images of the same name."""
        values = (value for file in self.files for value in file.values if value.key == BASE)
        if (base := next(values, None)) and images.repository(base.old) == images.repository(base.new):
            return base.old, base.new
        return "", ""

    def tree(self, unit: str) -> SourceTree | None:
        """The tree of a unit that both builds take from git."""
        return next((tree for tree in self.trees if tree.unit == unit and tree.old[0] and tree.new[0]), None)

    def package(self, unit: str) -> str:
        """The package of a unit that is one line of a requirements file on both sides; otherwise empty."""
        own = {segment.key for segment in self.segments if segment.unit == unit and segment.key}
        package = own.pop().removeprefix(PACKAGE_KEY) if len(own) == 1 else ""
        return package if package and all(self.versions(package)) else ""

    def versions(self, package: str) -> tuple[str, str]:
        """The version of a package on each side; empty if the side lacks the package."""
        old = new = ""
        for segment in self.segments:
            if segment.key == f"{PACKAGE_KEY}{package}":
                lines = (segment.old, segment.new)
                before, after = (line.partition("==")[2].partition(" ")[0].strip() for line in lines)
                old, new = before or old, after or new
        return old, new

    def recipe_text(self, candidate: BisectCandidate) -> str:
        """The recipe that serves a candidate; empty for the present recipe, which serves all except the first number
        and its mixtures."""
        return "".join(segment.chosen(candidate.taken, {}) for segment in self.recipe)


def _cost(axis: str) -> tuple[int, str]:
    names = (axis, axis.partition(" ")[0])
    places = (place for place, name in enumerate(_CHEAPEST_FIRST) if name in names)
    return next(places, len(_CHEAPEST_FIRST)), axis


def mixed_files(span: NumberSpan, taken: Collection[str], values: Mapping[str, str]) -> dict[str, StagedFile]:
    """The files of a mixture. The units ``taken`` come from the new build, with the ``values`` of a point: the commit
    of a source, or the line of a package."""
    mixed = {file.path: made for file in span.files if (made := file.mixed(taken, values))}
    for definition in span.parts:
        folder = f"{definition}/" if definition else ""
        text = _with_stages_named(mixed[f"{folder}Dockerfile"].content.decode())
        mixed[f"{folder}Dockerfile"] = StagedFile(text.encode())
        if _PATCHES_MOUNT in text and not any(path.startswith(f"{folder}patches/") for path in mixed):
            mixed[f"{folder}patches/none.patch"] = StagedFile(b"")
    return mixed


def mixed_targets(span: NumberSpan, taken: Collection[str], values: Mapping[str, str]) -> dict[str, object]:
    """The bake targets of a mixture, without labels."""
    made: dict[str, object] = {}
    parent = None
    paths = {file.path for file in span.files}
    for folder, (epoch, trees) in span.parts.items():
        sides = [(tree, *(tree.new if tree.unit in taken else tree.old)) for tree in trees]
        addresses = {
            tree.name: f"{url}#{values.get(f'{tree.unit} commit', commit)}" for tree, url, commit in sides if url
        }
        records = f"{folder}/{plan_model.PACKAGES}".removeprefix("/") in paths
        made[folder or making.TARGET] = making.bake_target(
            span.platform, epoch, addresses, parent, records_packages=records, folder=folder
        )
        parent = folder
    return made


def change_of(span: NumberSpan, unit: str) -> str:
    """The change of a unit as a unified diff of its files."""
    sides = [mixed_files(span, taken, {}) for taken in ((), (unit,))]
    # Requirements and recipes are long, so only the unit's own lines are shown.
    long = {file.path: file.segments for file in span.files if "python/" in file.path} | {RECIPE: span.recipe}
    for path, segments in long.items():
        own = [segment for segment in segments if segment.unit == unit]
        for side, lines in zip(sides, ([each.old for each in own], [each.new for each in own]), strict=True):
            side[path] = StagedFile("".join(lines).encode())
    return "".join(
        f"--- {span.old}/{change.path}\n+++ {span.new}/{change.path}\n"
        + "".join(f"{line}\n" for line in change.lines or [f"{change.path} {change.kind}: {change.note}"])
        for change in of_files(*sides)
    )


def span_reader(
    project: Project, repository: str, platform: str, recipe: str = "", recipe_before: tuple[int, str] = (0, "")
) -> Callable[[int, int], NumberSpan]:
    """Returns a function that reads the span of two numbers, each once. ``recipe`` is the present text of the recipe.
    ``recipe_before`` is the other text, with the number that it served."""

    @functools.cache
    def span(old: int, new: int) -> NumberSpan:
        names = ImageName(repository, old), ImageName(repository, new)
        before = recipe_before[1] if old == recipe_before[0] else ""
        flags = tuple(_recipe_segments(before, recipe)) if before else ()
        mixable = None
        with suppress(FileProblemsError, ValueError):  # adopted, missing, damaged or edited
            first, second = (build_directory.read_build_directory(project, name) for name in names)
            mixable = difference(names, (first, second), platform)
        return replace(mixable or NumberSpan(*names, platform), recipe=flags)

    return span


# The recipe. A flag of its command is one unit with its values; each other line is a unit, too.

_CONTINUED = re.compile(r"[ \t]*\\\n[ \t]*")
_BEFORE_FLAG = re.compile(r"(?=[ \t]--?[A-Za-z]|\n\Z)")
_LONGEST_NAME = 40


def _recipe_segments(before: str, after: str) -> Iterator[Segment]:
    """The segments of two texts of a recipe. Continued lines are joined, and lines are split before each flag."""
    tokens = (
        [token for line in _CONTINUED.sub(" ", text).splitlines(keepends=True) for token in _BEFORE_FLAG.split(line)]
        for text in (before, after)
    )
    old, new = (list(filter(None, each)) for each in tokens)
    for left, right in pairs(old, new, _flag_or_key):
        yield Segment(left, right, "" if left == right else f"{RECIPE}, {_flag_or_key(left or right)}")


def _flag_or_key(text: str) -> str:
    words = text.split()
    first = words[0] if words and words[0].startswith("-") else text.strip().partition(":")[0]
    return first.partition("=")[0][:_LONGEST_NAME] or "an empty line"


# Comparison of texts: instructions, the stages of mods, and values from sources.

_TITLE = re.compile(r"<<-?\s*['\"]?\w+['\"]?\n# (.+)$", re.MULTILINE)
# Each mod with a script gets a numbered stage on top of the previous stage. The numbers depend on the mods of a
# mixture, so texts are mixed without them.
_BELOW, _OWN = "\0below\0", "\0mod\0"
_MOD_STAGE = re.compile(r"^FROM \S+ AS mod-\S+$", re.MULTILINE)
_STAGE_MOUNT = re.compile(r"(?<=--mount=type=bind,from=)\S+(?=,target=/run/builder/below,rw)")
# Comments, arguments, and the stage of a mod with a script belong to the next instruction.
_LEADING = re.compile(r"\s*(?:#.*)?$|ARG\s|FROM \0below\0 AS \0mod\0$")
_MOD = re.compile(r"(?:source=mods/|^# mod )(?P<name>[A-Za-z0-9][A-Za-z0-9._+-]*)", re.MULTILINE)
_PATCH = re.compile(r"(?P<source>[a-z]+)-(?P<stem>[A-Za-z0-9._+-]+)\.patch")
_COMMIT = re.compile("[0-9a-f]{40}")
_DATE = re.compile(r"^export SOURCE_DATE_EPOCH='?(\d+)'?$", re.MULTILINE)
_MARK = "\0v%d\0"


def _instructions(dockerfile: str) -> list[str]:
    """The instructions of a Dockerfile, each with its leading lines. Joined, they are the whole text."""
    lines = re.split(r"(?<=\n)", dockerfile)
    tokens, begin = [], 0
    for first, end in bake.instructions([line.removesuffix("\n") for line in lines]):
        if not _LEADING.match(lines[first]):
            tokens.append("".join(lines[begin:end]))
            begin = end
    return [*tokens, "".join(lines[begin:])]


def _key(instruction: str) -> str:
    """The key of an instruction: its mod, the title of its script, or its first line. A changed instruction keeps its
    key."""
    lines = [line for line in instruction.splitlines() if not _LEADING.match(line)] or [instruction]
    if mod := _MOD.search(instruction):
        return f"{lines[0].partition(' ')[0]} mod {mod['name']}"
    comment = _TITLE.search(instruction)
    return comment[1] if comment else lines[0]


def pairs(old: Sequence[str], new: Sequence[str], key: Callable[[str], str] = str) -> Iterator[tuple[str, str]]:
    """Yields the tokens of two texts in order: tokens with the same ``key`` as a pair, other tokens paired with an
    empty one."""
    matcher = SequenceMatcher(None, list(map(key, old)), list(map(key, new)), autojunk=False)
    for tag, old_start, old_end, new_start, new_end in matcher.get_opcodes():
        if tag == "equal":
            yield from zip(old[old_start:old_end], new[new_start:new_end], strict=True)
        else:
            yield from ((token, "") for token in old[old_start:old_end])
            yield from (("", token) for token in new[new_start:new_end])


def _with_stages_named(dockerfile: str) -> str:
    below = current = ""
    number = 0
    lines = []
    for line in dockerfile.splitlines(keepends=True):
        if _OWN in line:
            number, below = number + 1, current
        lines.append(line.replace(_OWN, f"mod-{number}").replace(_BELOW, below))
        if stage := re.match(r"FROM .* AS (\S+)$", lines[-1]):
            current = stage[1]
    return "".join(lines)


def _values(old: BuildPart, new: BuildPart, texts: tuple[str, str]) -> tuple[Segment, ...]:
    """The values from sources that differ between two builds of one definition; ``texts`` are their Dockerfiles."""
    values: list[tuple[str, str, list[str]]] = []
    for source in sorted(old.takes.keys() & new.takes.keys()):
        sides = (old.takes[source], new.takes[source])
        if source == "base":
            bases = (BasePin(side.get("image", ""), side.get("content", "")) for side in sides)
            values.append((BASE, BASE, [making.base_reference(Pins(base)) for base in bases]))
        elif not source.endswith("packages") and all("version" in side for side in sides):
            commits = [side.get("commit", "") for side in sides]
            # A source that is part of the base image changes with the base.
            own = {*PACKAGES_BUILT_FROM.get(source, (source,))}
            is_brought = all(own & part.takes.get(making.BASE_PACKAGES, {}).keys() for part in (old, new))
            unit = BASE if is_brought else source
            values += [
                (unit, f"{source} commit", commits),
                (unit, f"{source} version", [side["version"] for side in sides]),
                (unit, f"{source} date", [_date(text, source) for text in texts]),
                (unit, f"{source} index", list(map(_index_commit, texts, commits))),
            ]
    return tuple(Segment(both[0], both[1], unit, key) for unit, key, both in values if all(both) and both[0] != both[1])


def _date(dockerfile: str, source: str) -> str:
    """The date of a source's tree (seconds since 1970), from the instruction that builds it."""
    mount = f"from={making.source_context(source)},"
    dates = (_DATE.search(text) for text in _instructions(dockerfile) if mount in text)
    return next((date[1] for date in dates if date), "")


def _index_commit(dockerfile: str, digits: str) -> str:
    """The whole commit with these first digits, from the address of an index in the text."""
    if not digits or _COMMIT.fullmatch(digits):
        return ""
    match = re.search(rf"(?<=/){re.escape(digits)}[0-9a-f]{{{40 - len(digits)}}}(?![0-9a-f])", dockerfile)
    return match[0] if match else ""


def marked(text: str, values: Sequence[Segment], *, is_new: bool) -> str:
    """The text with a mark in place of each value, so that other differences remain."""
    for number, value in enumerate(values):
        written = re.escape(value.new if is_new else value.old)
        if not _COMMIT.fullmatch(written):  # not a part of a longer version or a file name
            written = rf"(?<![\w.]){written}(?!\w|\.(?:\d|dev|post))"
        text = re.sub(written, _MARK % number, text)
    return text


def filled(text: str, marks: Sequence[Segment], taken: Collection[str], values: Mapping[str, str]) -> str:
    """A marked text with the values of its ``marks``. The units ``taken`` get the new values, or the ``values`` of a
    point."""
    for number, mark in enumerate(marks):
        text = text.replace(_MARK % number, mark.chosen(taken, values))
    return text


# The comparison of two recorded builds.


def difference(
    names: tuple[ImageName, ImageName], builds: tuple[BuildDirectory, BuildDirectory], platform: str
) -> NumberSpan | None:
    """The difference between the builds of two numbers. None if their chains of definitions differ: such builds cannot
    be mixed. Raises FileProblemsError if a build directory cannot be read, ValueError if it was edited."""
    before, after = ({part.definition: part for part in each.parts} for each in builds)
    if list(before) != list(after):
        return None
    old_files, new_files = map(build_directory.read_build_files, builds)
    axis_of: dict[str, str] = {}
    files: list[MixedFile] = []
    parts = {}
    for name, part in before.items():
        both = _of_part(old_files, name, before), _of_part(new_files, name, before)
        compared = _ComparedPart(name, part, after[name], both, axis_of)
        files += compared.files()
        epoch = str(part.target.get("args", {}).get("SOURCE_DATE_EPOCH", ""))
        parts[name] = (int(epoch) if epoch.isdecimal() else 0, compared.trees())
    return NumberSpan(*names, platform, tuple(files), parts, axis_of=axis_of)


def _of_part(files: Files, name: str, parts: Collection[str]) -> Files:
    """The files of a definition, by their paths relative to its folder."""
    if name:
        return {path.removeprefix(f"{name}/"): file for path, file in files.items() if path.startswith(f"{name}/")}
    own = (path for path in files if path.partition("/")[0] not in parts and not plan_model.is_record(path))
    return {path: files[path] for path in own}


class _ComparedPart:
    """The files of one definition in two builds. New units are added to ``axis_of``."""

    def __init__(
        self, name: str, old: BuildPart, new: BuildPart, files: tuple[Files, Files], axis_of: dict[str, str]
    ) -> None:
        self.name, self.axis_of = name, axis_of
        self.old_files, self.new_files = files
        self.contexts = (old.contexts, new.contexts)
        texts = (files[0]["Dockerfile"].content.decode(), files[1]["Dockerfile"].content.decode())
        self.values = _values(old, new, texts)
        axis_of |= {value.unit: value.unit for value in self.values}
        versioned = {source for part in (old, new) for source, takes in part.takes.items() if "version" in takes}
        self.sources = sorted({*old.contexts, *new.contexts, *versioned})
        # The units that own all lines with a word. The word is the name of a source that only one build takes from git,
        # or of a requirements file that only one build has, for packages of one source with its own index.
        self.owners = {source: self._unit(source) for source in sorted(old.contexts.keys() ^ new.contexts.keys())}
        for path in sorted(files[0].keys() ^ files[1].keys()):
            if path.startswith("python/"):
                text = (files[0].get(path) or files[1][path]).content.decode()
                owners = {self._source_of(package.name) for package in making.read_requirements(text)}
                if len(owners) == 1 and (owner := owners.pop()):
                    self.owners[path.removeprefix("python/")] = owner

    def _unit(self, name: str, axis: str = "") -> str:
        """The unit of this name; its definition is a prefix if that is a parent of the image's own definition."""
        full = f"{self.name}: {name}" if self.name and name not in self.axis_of else name
        self.axis_of.setdefault(full, axis or name)
        return full

    def trees(self) -> tuple[SourceTree, ...]:
        old, new = self.contexts
        return tuple(
            SourceTree(source, self._unit(source), old.get(source, ("", "")), new.get(source, ("", "")))
            for source in sorted(old.keys() | new.keys())
        )

    def files(self) -> Iterator[MixedFile]:
        for path in sorted(self.old_files.keys() | self.new_files.keys()):
            old, new = self.old_files.get(path), self.new_files.get(path)
            full = f"{self.name}/{path}" if self.name else path
            if path.startswith("python/"):
                yield MixedFile(full, old, new, segments=tuple(self._packages(path)))
            elif old == new:
                yield MixedFile(full, old, new)
            elif path == "Dockerfile" and old and new:
                segments = tuple(self._dockerfile(old.content.decode(), new.content.decode()))
                yield MixedFile(full, old, new, "", segments, self.values)
            elif path == "build-metadata.yaml" and old and new:
                # Other differences in this file result from differences in other files.
                text = marked(old.content.decode(), self.values, is_new=False)
                yield MixedFile(full, old, new, "", (Segment(text, text),), self.values)
            elif path != plan_model.PACKAGES:
                named = {"mods": f"source={path}", "patches": path}.get(path.partition("/")[0], "")
                yield MixedFile(full, old, new, self._named(named) or self._unit(TEMPLATE))
            elif old and new:  # otherwise one build is older than this record of packages
                # The first line contains the time of installation.
                lists = [[line for line in side.content.splitlines() if line[:1] != b"#"] for side in (old, new)]
                unit = self._unit(_DISTRIBUTION) if lists[0] != lists[1] else ""
                yield MixedFile(full, old, new, unit)

    def _packages(self, path: str) -> Iterator[Segment]:
        texts = [files[path].content.decode() if path in files else "" for files in (self.old_files, self.new_files)]
        before, after = (
            {package.name: layout.requirement_line(package) for package in making.read_requirements(text)}
            for text in texts
        )
        for name in dict.fromkeys(old or new for old, new in pairs(list(before), list(after))):
            old, new = before.get(name, ""), after.get(name, "")
            if old == new:
                yield Segment(old, new)
            else:
                key = "" if path.endswith("/build.txt") else f"{PACKAGE_KEY}{name}"
                yield Segment(old, new, self._source_of(name) or self._unit(key or "build packages", PACKAGES), key)

    def _source_of(self, package: str) -> str:
        """The source whose wheel the package is; otherwise empty."""
        for source in self.sources:
            is_own = package in PACKAGES_BUILT_FROM.get(source, (source,)) or package.startswith(f"{source}-")
            if is_own and source in self.axis_of:
                return source
        return ""

    def _dockerfile(self, old: str, new: str) -> Iterator[Segment]:
        opened = [_STAGE_MOUNT.sub(_BELOW, _MOD_STAGE.sub(f"FROM {_BELOW} AS {_OWN}", text)) for text in (old, new)]
        before, after = (
            [marked(token, self.values, is_new=is_new) for token in _instructions(text)]
            for text, is_new in ((opened[0], False), (opened[1], True))
        )
        mounts = old.count(_PATCHES_MOUNT) != new.count(_PATCHES_MOUNT)
        for left, right in pairs(before, after, _key):
            if not left or not right or _MOD.search(left):
                yield from self._changed([(left, right)])
                continue
            lines = pairs(left.splitlines(keepends=True), right.splitlines(keepends=True))
            if mounts:  # a patch needs the mount, and without a patch it is harmless
                lines = ((old or new,) * 2 if _PATCHES_MOUNT in old + new else (old, new) for old, new in lines)
            for _, stretch in itertools.groupby(lines, lambda pair: pair[0] == pair[1]):
                yield from self._changed(list(stretch))

    def _changed(self, stretch: Sequence[tuple[str, str]]) -> Iterator[Segment]:
        """The segments of adjacent lines. A line that names no unit belongs to the unit that the other lines name."""
        for old, new in stretch:
            unit = ""
            if old != new:
                unit = self._named(old + new) or self._named("".join(map("".join, stretch))) or self._unit(TEMPLATE)
            yield Segment(old, new, unit)

    def _named(self, text: str) -> str:
        """The unit that a path or a part of the Dockerfile names; empty if it names none."""
        if mod := _MOD.search(text):
            return self._unit(f"mod {mod['name']}")
        if patch := _PATCH.search(text):
            name = f"{patch['source']}#{patch['stem']}"
            return self._unit(f"{'pull request' if patch['stem'].isdecimal() else 'patch'} {name}", _PATCHES)
        word = re.search(rf"\b(?:{'|'.join(map(re.escape, self.owners))})\b", text) if self.owners else None
        return self.owners[word[0]] if word else ""

"""The difference of two recorded builds: units that can be taken from either, and the build directory of any mixture.

The files and trees of a mixture come first, then texts side by side, and the comparison of two builds. Everything is
read from recorded build directories: today's templates and pins show only what would be built today. A value that a
text takes from a source (a version, a commit, the digest of the base image) belongs to that source, so that the text
around it belongs to the template alone.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from builder.definitions.image import PACKAGES_BUILT_FROM
from builder.lab.bisect.search import Axis
from builder.lock import closures
from builder.numbers import build_directory
from builder.plan import making, plan_model
from builder.plan.plan_model import StagedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from builder.numbers.build_directory import BuildDirectory, BuildPart

    Files = Mapping[str, StagedFile]

TEMPLATE, BASE = "template", "base image"
PACKAGE_KEY = "package "
PACKAGES = "Python packages"
_PATCHES, _DISTRIBUTION = "patches of sources", "distribution packages"
# The later a step stands in the image, the less has to be built again for it.
_CHEAPEST_FIRST = ("mod", TEMPLATE, _PATCHES, PACKAGES, "flashinfer", "vllm", _DISTRIBUTION, BASE)
_PATCHES_MOUNT = "source=patches,target="


@dataclass(frozen=True)
class Segment:
    """A part of a text in the old and the new build, or a value in a text. Its ``unit`` decides which is taken; it is
    empty where both are the same. A point of the unit may have another value under the same ``key``."""

    old: str
    new: str
    unit: str = ""
    key: str = ""

    def chosen(self, taken: Collection[str], chosen: Mapping[str, str]) -> str:
        if self.unit not in taken:
            return self.old
        # The value of a point replaces a new one. A package that the new build lacks is at no point either.
        return chosen.get(self.key, self.new) if self.new else ""


@dataclass(frozen=True)
class MixedFile:
    """A file of two builds, None if a build lacks it. It is taken whole with its ``unit``, or in ``segments``, in which
    ``values`` are marked."""

    path: str
    old: StagedFile | None
    new: StagedFile | None
    unit: str = ""
    segments: tuple[Segment, ...] = ()
    values: tuple[Segment, ...] = ()

    def mixed(self, taken: Collection[str], chosen: Mapping[str, str]) -> StagedFile | None:
        """The file with the units ``taken`` from the new build, None if it does not exist."""
        is_new = self.unit in taken or any(segment.unit in taken for segment in self.segments)
        side = self.new if is_new else self.old
        if side is None or not self.segments:
            return side
        text = "".join(segment.chosen(taken, chosen) for segment in self.segments)
        return StagedFile(filled(text, self.values, taken, chosen).encode(), side.executable)


@dataclass(frozen=True)
class SourceTree:
    """The tree of a source taken from git: its address and commit, empty in a build that takes none."""

    name: str
    unit: str
    old: tuple[str, str]
    new: tuple[str, str]


@dataclass(frozen=True)
class Difference:
    """Two builds of one chain of definitions. ``parts`` has for each definition the date of its old image (seconds
    since 1970) and its trees; ``axis_of`` has the axis of each unit."""

    platform: str
    files: tuple[MixedFile, ...]
    parts: Mapping[str, tuple[int, tuple[SourceTree, ...]]]
    axis_of: Mapping[str, str]

    @property
    def trees(self) -> tuple[SourceTree, ...]:
        return tuple(tree for _, trees in self.parts.values() for tree in trees)

    @property
    def dockerfiles(self) -> tuple[str, str]:
        """The Dockerfiles of all definitions in the old and in the new build."""
        dockerfiles = [file for file in self.files if file.path.rpartition("/")[2] == "Dockerfile"]
        old, new = [file.old for file in dockerfiles if file.old], [file.new for file in dockerfiles if file.new]
        return "".join(file.content.decode() for file in old), "".join(file.content.decode() for file in new)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes, the cheapest to change first."""
        rows: dict[str, list[str]] = {}
        units = (
            *(unit for file in self.files for unit in (file.unit, *(segment.unit for segment in file.segments))),
            *(value.unit for file in self.files for value in file.values),
            *(tree.unit for tree in self.trees if tree.old != tree.new),
        )
        for unit in filter(None, dict.fromkeys(units)):
            rows.setdefault(self.axis_of[unit], []).append(unit)
        return tuple(Axis(name, tuple(rows[name])) for name in sorted(rows, key=_cost))


def _cost(axis: str) -> tuple[int, str]:
    names = (axis, axis.partition(" ")[0])
    places = (place for place, name in enumerate(_CHEAPEST_FIRST) if name in names)
    return next(places, len(_CHEAPEST_FIRST)), axis


def mixed_files(difference: Difference, taken: Collection[str], chosen: Mapping[str, str]) -> dict[str, StagedFile]:
    """The files of a mixture: the units ``taken`` come from the new build, with the values ``chosen`` of a point: the
    commit of a source, the line of a package."""
    mixed = {file.path: made for file in difference.files if (made := file.mixed(taken, chosen))}
    for definition in difference.parts:
        folder = f"{definition}/" if definition else ""
        text = _with_stages_named(mixed[f"{folder}Dockerfile"].content.decode())
        mixed[f"{folder}Dockerfile"] = StagedFile(text.encode())
        if _PATCHES_MOUNT in text and not any(path.startswith(f"{folder}patches/") for path in mixed):
            mixed[f"{folder}patches/none.patch"] = StagedFile(b"")
    return mixed


def mixed_targets(difference: Difference, taken: Collection[str], chosen: Mapping[str, str]) -> dict[str, object]:
    """The bake targets of a mixture, without labels."""
    made: dict[str, object] = {}
    parent = None
    for folder, (epoch, trees) in difference.parts.items():
        addresses = {}
        for tree in trees:
            url, commit = tree.new if tree.unit in taken else tree.old
            if url:
                addresses[tree.name] = f"{url}#{chosen.get(f'{tree.unit} commit', commit)}"
        records = f"{folder}/{plan_model.PACKAGES}".removeprefix("/") in {file.path for file in difference.files}
        target = making.bake_target(difference.platform, epoch, addresses, parent, records_packages=records)
        if folder:
            target["context"] = folder
            target |= {"secret": [making.packages_secret(folder)]} if records else {}
        made[folder or making.TARGET] = target
        parent = folder
    return made


# Texts side by side: instructions, the stages of mods, and values from sources.

_HEREDOC = re.compile(r"<<-?\s*(?P<quote>['\"]?)(?P<word>\w+)(?P=quote)")
_TITLE = re.compile(r"<<-?\s*['\"]?\w+['\"]?\n# (.+)$", re.MULTILINE)
# Mods with scripts get numbered stages, each on the one before it. Which mods a mixture has decides the numbers, so a
# text to be mixed leaves them open.
_BELOW, _OWN = "\0below\0", "\0mod\0"
_MOD_STAGE = re.compile(r"^FROM \S+ AS mod-\S+$", re.MULTILINE)
_STAGE_MOUNT = re.compile(r"(?<=--mount=type=bind,from=)\S+(?=,target=/run/builder/below,rw)")
# Comments, arguments, and the stage of a mod with a script belong to the instruction that follows.
_LEADING = re.compile(r"\s*(?:#.*)?$|ARG\s|FROM \0below\0 AS \0mod\0$")
_MOD = re.compile(r"(?:source=mods/|^# mod )(?P<name>[A-Za-z0-9][A-Za-z0-9._+-]*)", re.MULTILINE)
_PATCH = re.compile(r"(?P<source>[a-z]+)-(?P<stem>[A-Za-z0-9._+-]+)\.patch")
_COMMIT = re.compile("[0-9a-f]{40}")
_DATE = re.compile(r"^export SOURCE_DATE_EPOCH='?(\d+)'?$", re.MULTILINE)
_MARK = "\0v%d\0"


def _instructions(dockerfile: str) -> list[str]:
    """The instructions of a Dockerfile, each with the leading lines that belong to it; joined, they are the text."""
    tokens, current, end = [], "", ""
    for line in dockerfile.splitlines(keepends=True):
        is_leading = not end and not current.endswith("\\\n") and bool(_LEADING.match(line.rstrip("\n")))
        current += line
        if end:
            end = "" if line.strip() == end else end
        elif heredoc := (None if is_leading else _HEREDOC.search(line)):
            end = heredoc["word"]
        if not is_leading and not end and not line.rstrip("\n").endswith("\\"):
            tokens.append(current)
            current = ""
    return [*tokens, current] if current else tokens


def _title(instruction: str) -> str:
    """The first comment in the script of an instruction, or nothing."""
    comment = _TITLE.search(instruction)
    return comment[1] if comment else ""


def _key(instruction: str) -> str:
    """The key of an instruction: a changed one keeps its mod, the title of its script, or its first line."""
    lines = [line for line in instruction.splitlines() if not _LEADING.match(line)] or [instruction]
    if mod := _MOD.search(instruction):
        return f"{lines[0].partition(' ')[0]} mod {mod['name']}"
    return _title(instruction) or lines[0]


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
    """The values from sources that differ between two builds of one definition with these Dockerfiles."""
    values: list[tuple[str, str, list[str]]] = []
    for source in sorted(old.takes.keys() & new.takes.keys()):
        sides = (old.takes[source], new.takes[source])
        if source == "base":
            bases = [(side.get("image", ""), side.get("content", "")) for side in sides]
            written = [name if content.startswith("local:") else f"{name}@{content}" for name, content in bases]
            values.append((BASE, BASE, written))
        elif not source.endswith("packages") and all("version" in side for side in sides):
            commits = [side.get("commit", "") for side in sides]
            unit = BASE if all(_is_brought(source, part) for part in (old, new)) else source
            values += [
                (unit, f"{source} commit", commits),
                (unit, f"{source} version", [side["version"] for side in sides]),
                (unit, f"{source} date", [_date(text, source) for text in texts]),
                (unit, f"{source} index", list(map(_index_commit, texts, commits))),
            ]
    return tuple(Segment(both[0], both[1], unit, key) for unit, key, both in values if all(both) and both[0] != both[1])


def _is_brought(source: str, part: BuildPart) -> bool:
    """True if the base image brings a source: then it changes with the base."""
    packages = part.takes.get(making.BASE_PACKAGES, {})
    return any(package in packages for package in PACKAGES_BUILT_FROM.get(source, (source,)))


def _date(dockerfile: str, source: str) -> str:
    """The date of a source's tree (seconds since 1970) in the instruction that builds it."""
    mount = f"from={making.source_context(source)},"
    dates = (_DATE.search(text) for text in _instructions(dockerfile) if mount in text)
    return next((date[1] for date in dates if date), "")


def _index_commit(dockerfile: str, digits: str) -> str:
    """The whole commit with these first digits in the address of an index that the text names."""
    if not digits or _COMMIT.fullmatch(digits):
        return ""
    match = re.search(rf"(?<=/){re.escape(digits)}[0-9a-f]{{{40 - len(digits)}}}(?![0-9a-f])", dockerfile)
    return match[0] if match else ""


def marked(text: str, values: Sequence[Segment], *, is_new: bool) -> str:
    """The text with a mark for each value, so that two texts differ only in what else differs."""
    for number, value in enumerate(values):
        written = re.escape(value.new if is_new else value.old)
        if not _COMMIT.fullmatch(written):  # a longer version continues, a file's name has a suffix
            written = rf"(?<![\w.]){written}(?!\w|\.(?:\d|dev|post))"
        text = re.sub(written, _MARK % number, text)
    return text


def filled(text: str, values: Sequence[Segment], taken: Collection[str], chosen: Mapping[str, str]) -> str:
    """A marked text with its values: for the units ``taken`` the new or the ``chosen`` ones."""
    for number, value in enumerate(values):
        text = text.replace(_MARK % number, value.chosen(taken, chosen))
    return text


# The comparison of two recorded builds.


def difference(old: BuildDirectory, new: BuildDirectory, platform: str) -> Difference | None:
    """The difference between two builds; None if their chains of definitions differ, so that they cannot be mixed.
    Raises FileProblemsError for a build directory that cannot be read, ValueError for an edited one."""
    before, after = ({part.definition: part for part in each.parts} for each in (old, new))
    if list(before) != list(after):
        return None
    old_files, new_files = map(build_directory.read_build_files, (old, new))
    axis_of: dict[str, str] = {}
    files: list[MixedFile] = []
    parts = {}
    for name, part in before.items():
        both = _of_part(old_files, name, before), _of_part(new_files, name, before)
        compared = _ComparedPart(name, part, after[name], both, axis_of)
        files += compared.files()
        epoch = str(part.target.get("args", {}).get("SOURCE_DATE_EPOCH", ""))
        parts[name] = (int(epoch) if epoch.isdecimal() else 0, compared.trees())
    return Difference(platform, tuple(files), parts, axis_of)


def _of_part(files: Files, name: str, parts: Collection[str]) -> Files:
    """The files of a definition, by the path below its folder."""
    if name:
        return {path.removeprefix(f"{name}/"): file for path, file in files.items() if path.startswith(f"{name}/")}
    others = {*parts, plan_model.PLAN, plan_model.BAKE, plan_model.RECORD, plan_model.LAYERS}
    return {path: file for path, file in files.items() if path.partition("/")[0] not in others}


class _ComparedPart:
    """The files of one definition in two builds. New units are added to ``axis_of``."""

    def __init__(
        self, name: str, old: BuildPart, new: BuildPart, files: tuple[Files, Files], axis_of: dict[str, str]
    ) -> None:
        self.name, self.axis_of = name, axis_of
        self.old_files, self.new_files = old_files, new_files = files
        self.contexts = (old.contexts, new.contexts)
        texts = (old_files["Dockerfile"].content.decode(), new_files["Dockerfile"].content.decode())
        self.values = _values(old, new, texts)
        axis_of |= {value.unit: value.unit for value in self.values}
        versioned = {source for part in (old, new) for source, takes in part.takes.items() if "version" in takes}
        self.sources = sorted({*old.contexts, *new.contexts, *versioned})
        moved = old.contexts.keys() ^ new.contexts.keys()
        self.moved = re.compile(rf"\b(?:{'|'.join(moved)})\b") if moved else None
        # Requirement files that only one build has, for packages of one source, which comes from an index of its own.
        # The lines that install them belong to that source, too.
        self.lone: dict[str, str] = {}
        for path in sorted(old_files.keys() ^ new_files.keys()):
            if path.startswith("python/"):
                text = (old_files.get(path) or new_files[path]).content.decode()
                owners = {self._source_of(package.name) for package in making.read_requirements(text)}
                if len(owners) == 1 and (owner := owners.pop()):
                    self.lone[path.removeprefix("python/")] = owner

    def _unit(self, name: str, axis: str = "") -> str:
        """The unit of this name, prefixed by its definition where that is a parent of the image's own."""
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
                # What else differs in it comes from what differs elsewhere.
                text = marked(old.content.decode(), self.values, is_new=False)
                yield MixedFile(full, old, new, "", (Segment(text, text),), self.values)
            elif path != plan_model.PACKAGES:
                named = {"mods": f"source={path}", "patches": path}.get(path.partition("/")[0], "")
                yield MixedFile(full, old, new, self._named(named) or self._unit(TEMPLATE))
            elif old and new:  # otherwise one of the builds is older than the record of these packages
                # The first line says when the packages were installed.
                lists = [[line for line in side.content.splitlines() if line[:1] != b"#"] for side in (old, new)]
                unit = self._unit(_DISTRIBUTION) if lists[0] != lists[1] else ""
                yield MixedFile(full, old, new, unit)

    def _packages(self, path: str) -> Iterator[Segment]:
        texts = [files[path].content.decode() if path in files else "" for files in (self.old_files, self.new_files)]
        before, after = (
            {package.name: closures.requirement_line(package) for package in making.read_requirements(text)}
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
        """The source whose wheel a package is, or nothing."""
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
            if mounts:  # a patch needs the mount, and it is harmless without one
                lines = ((old or new,) * 2 if _PATCHES_MOUNT in old + new else (old, new) for old, new in lines)
            for _, stretch in itertools.groupby(lines, lambda pair: pair[0] == pair[1]):
                yield from self._changed(list(stretch))

    def _changed(self, stretch: Sequence[tuple[str, str]]) -> Iterator[Segment]:
        """The segments of lines that stand together. Lines that name no unit are of the one that the others name."""
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
        if self.moved and (source := self.moved.search(text)):
            return self._unit(source[0])
        return next((self.lone[file] for file in self.lone if file in text), "")

"""Two recorded builds, cut into segments that can be taken from either."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.bisecting import stages, tokens, values
from builder.bisecting.mixture import MOUNT, Difference, MixedPart, Segment, SegmentedFile, SourceTree
from builder.definitions.image import PACKAGES_BUILT_FROM
from builder.plan import layout, python

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from builder.bisecting.values import SourceValue
    from builder.numbered.build_directory import BuildDirectory, BuildPart
    from builder.plan.model import StagedFile

    Files = Mapping[str, StagedFile]

PACKAGE = "package "
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
    others = {*parts, layout.PLAN, layout.BAKE, layout.RECORD, layout.LAYERS}
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
        self.values = values.of_part(old, new)
        for value in self.values:
            axis_of[value.unit] = value.unit
        moved = old.contexts.keys() ^ new.contexts.keys()
        self.moved = re.compile(rf"\b(?:{'|'.join(moved)})\b") if moved else None
        self.lone: dict[str, str] = {}
        self.marked: tuple[SourceValue, ...] = ()

    def unit(self, name: str, axis: str) -> str:
        """The unit of this name, with its definition where that is none of the image's own."""
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
            if path == layout.PACKAGES and not (before and after):
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
            text = values.marked(old.decode(), self.values, is_new=False).encode()
            yield Segment(text, text)  # what else differs in it is of what differs elsewhere
        elif path == layout.PACKAGES:
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
        before, after = ({package.name: python.line(package) for package in python.read(text)} for text in (old, new))
        names = (left or right for left, right in tokens.pairs(list(before), list(after)))
        for name in dict.fromkeys(names):
            texts = [side.get(name, "").encode() for side in (before, after)]
            if texts[0] == texts[1]:
                yield Segment(texts[0], texts[1])
                continue
            is_build = path.endswith("/build.txt")
            unit = self._source_of(name) or self.unit("build packages" if is_build else f"{PACKAGE}{name}", PACKAGES)
            yield Segment(texts[0], texts[1], unit, "" if is_build else f"{PACKAGE}{name}")

    def _lone(self, old: Files, new: Files) -> Iterator[tuple[str, str]]:
        """Yields the requirement files that only one build has, for packages of one source alone: those of an index
        that the source is taken from. The lines that install them are of that source, too."""
        for path in old.keys() ^ new.keys():
            if path.startswith("python/"):
                packages = python.read((old.get(path) or new[path]).content.decode())
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
        texts = [tokens.instructions(stages.opened(text)) for text in (old, new)]
        self.marked = (
            *self.values,
            *values.of_dates(texts[0], texts[1], self.sources),
            *values.of_indexes(old, new, self.values),
        )
        sides = [
            [values.marked(token, self.marked, is_new=bool(side)) for token in text] for side, text in enumerate(texts)
        ]
        mounts = old.count(MOUNT) != new.count(MOUNT)
        for before, after in tokens.pairs(sides[0], sides[1], _key):
            if not before or not after or _MOD.search(before):
                yield from self._changed([(before, after)])
                continue
            lines = tokens.pairs(before.splitlines(keepends=True), after.splitlines(keepends=True))
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
    lines = [line for line in instruction.splitlines() if not tokens.is_leading_line(line)] or [instruction]
    if mod := _MOD.search(instruction):
        return f"{lines[0].partition(' ')[0]} mod {mod['name']}"
    return tokens.title(instruction) or lines[0]

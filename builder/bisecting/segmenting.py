"""Two recorded builds, cut into segments that can be taken from either."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.bisecting import stages, tokens, values
from builder.bisecting.mixture import MOUNT, Difference, MixedPart, Segment, SegmentedFile, SourceTree
from builder.definitions.image import PACKAGES_BUILT_FROM
from builder.plan import layout, python

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.bisecting.values import SourceValue
    from builder.numbered.build_directory import BuildDirectory, BuildPart
    from builder.plan.model import StagedFile

    Files = Mapping[str, StagedFile]

TEMPLATE, PULLS, PACKAGES, DISTRIBUTION = "template", "pull requests", "Python packages", "distribution packages"
_MOD = re.compile(r"(?:source=mods/|^# mod )(?P<name>[A-Za-z0-9][A-Za-z0-9._+-]*)", re.MULTILINE)
_PATCH = re.compile(r"(?P<source>[a-z]+)-(?P<number>\d+)\.patch")
_METADATA = {
    "vllm_version": "vllm",
    "vllm_commit": "vllm",
    "flashinfer_commit": "flashinfer",
    "base_image": values.BASE,
}


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
        files += cut.files(_of_part(old.files, name, list(before)), _of_part(new.files, name, list(before)))
        parts.append(MixedPart(name, _epoch(part), cut.trees()))
    return Difference(platform, tuple(files), tuple(parts), axis_of)


def _of_part(files: Files, name: str, parts: Sequence[str]) -> dict[str, StagedFile]:
    """The files of a definition, by the path below its folder."""
    others = {part for part in parts if part and part != name}
    if name:
        return {path.removeprefix(f"{name}/"): file for path, file in files.items() if path.startswith(f"{name}/")}
    return {
        path: file
        for path, file in files.items()
        if path.partition("/")[0] not in others and path not in {layout.PLAN, layout.BAKE, layout.RECORD, layout.LAYERS}
    }


def _without_comments(index: bytes) -> list[bytes]:
    """The lines of an index but for the first, which says when the packages were installed."""
    return [line for line in index.splitlines() if not line.startswith(b"#")]


def _epoch(part: BuildPart) -> int:
    text = str(part.target.get("args", {}).get("SOURCE_DATE_EPOCH", ""))
    return int(text) if text.isdecimal() else 0


class _Part:
    """The files of one definition in both builds, cut up."""

    def __init__(self, name: str, old: BuildPart, new: BuildPart, axis_of: dict[str, str]) -> None:
        self.name, self.old, self.new, self.axis_of = name, old, new, axis_of
        self.sources = sorted(old.contexts.keys() | new.contexts.keys() | _sources(old) | _sources(new))
        self.values = values.of_parts({name: old}, {name: new})
        for value in self.values:
            axis_of[value.unit] = value.unit
        moved = {source for source in self.sources if _is_git(old, source) != _is_git(new, source)}
        self.moved = re.compile(rf"\b(?:{'|'.join(moved)})\b") if moved else None
        self.lone: dict[str, str] = {}

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
            yield SegmentedFile(full, segments, *bits)

    def _segments(self, path: str, before: StagedFile | None, after: StagedFile | None) -> Iterator[Segment]:
        old, new = (file.content if file else b"" for file in (before, after))
        if path.startswith("python/"):
            yield from self._packages(path, old.decode(), new.decode())
        elif before and after and before == after:
            yield Segment(old, new)
        elif path == "Dockerfile":
            yield from self._dockerfile(old.decode(), new.decode())
        elif path == "build-metadata.yaml":
            yield from self._metadata(old.decode(), new.decode())
        elif path == layout.PACKAGES:
            same = _without_comments(old) == _without_comments(new)
            yield Segment(old, old if same else new, "" if same else self.unit(DISTRIBUTION, DISTRIBUTION))
        elif path.startswith("patches/") and (patch := _PATCH.search(path)):
            yield Segment(old, new, self.unit(f"pull request {patch['source']}#{patch['number']}", PULLS))
        elif path.startswith("mods/"):
            yield from self._mod(path, before, after)
        else:
            yield Segment(old, new, self.unit(f"template, {path}", TEMPLATE))

    def _mod(self, path: str, before: StagedFile | None, after: StagedFile | None) -> Iterator[Segment]:
        _, name, inside = path.split("/", 2)
        old, new = (file.content if file else b"" for file in (before, after))
        if name not in self.old.mods or name not in self.new.mods:
            yield Segment(old, new, self.unit(f"mod {name}", f"mod {name}"))
            return
        try:
            texts = (old.decode(), new.decode()) if before and after else None
        except UnicodeDecodeError:
            texts = None
        whole = f"mod {name}: {inside}"
        if texts is None or b"\0" in old + new:
            yield Segment(old, new, self.unit(whole, f"mod {name}"))
            return
        is_patch = path.endswith((".patch", ".diff"))
        cut = tokens.hunks if is_patch else tokens.lines
        for stretch in tokens.stretches(cut(texts[0]), cut(texts[1])):
            for part in tokens.single(stretch) if is_patch else (stretch,):
                place = "" if part.is_common else self.unit(f"{whole}, line {part.line}", f"mod {name}")
                yield Segment("".join(part.old).encode(), "".join(part.new).encode(), place)

    def _packages(self, path: str, old: str, new: str) -> Iterator[Segment]:
        before = {package.name: package for package in python.read(old)}
        after = {package.name: package for package in python.read(new)}
        names = (
            name
            for stretch in tokens.stretches(list(before), list(after))
            for name in dict.fromkeys((*stretch.old, *stretch.new))
        )
        for name in dict.fromkeys(names):
            texts = [python.line(side[name]).encode() if name in side else b"" for side in (before, after)]
            if texts[0] == texts[1]:
                yield Segment(texts[0], texts[1])
                continue
            is_build = path.endswith("/build.txt")
            unit = self._source_of(name) or self.unit("build packages" if is_build else f"package {name}", PACKAGES)
            yield Segment(texts[0], texts[1], unit, "" if is_build else f"package {name}")

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

    def _metadata(self, old: str, new: str) -> Iterator[Segment]:
        for stretch in tokens.stretches(tokens.lines(old), tokens.lines(new)):
            rows = [{line.partition(":")[0]: line for line in side} for side in (stretch.old, stretch.new)]
            for key in dict.fromkeys((*rows[0], *rows[1])):
                before, after = (row.get(key, "") for row in rows)
                if before == after or key == "build_date":
                    yield Segment(before.encode(), before.encode())
                    continue
                source = _METADATA.get(key, "")
                unit = source if source in self.axis_of else self.unit("template, build-metadata.yaml", TEMPLATE)
                yield Segment(before.encode(), after.encode(), unit)

    def _dockerfile(self, old: str, new: str) -> Iterator[Segment]:
        texts = [tokens.instructions(stages.opened(text)) for text in (old, new)]
        known_values = (
            *self.values,
            *values.of_dates(texts[0], texts[1], self.sources),
            *values.of_indexes(old, new, self.values),
        )
        marked = [
            [values.marked(token, known_values, is_new=bool(side)) for token in text] for side, text in enumerate(texts)
        ]
        for stretch in tokens.stretches(marked[0], marked[1]):
            if stretch.is_common:
                yield from _valued("".join(stretch.old), "".join(stretch.new), "", known_values)
                continue
            for part in tokens.single(stretch):
                before, after = "".join(part.old), "".join(part.new)
                if before and after:
                    yield from self._instruction(before, after, part.line, known_values)
                else:
                    yield from _valued(before, after, self._unit_of(before + after, part.line), known_values)

    def _instruction(
        self, before: str, after: str, line: int, known_values: Sequence[SourceValue]
    ) -> Iterator[Segment]:
        """An instruction that differs, line by line; as a whole where it is of a mod, or of two."""
        mods = [mod["name"] if (mod := _MOD.search(token)) else "" for token in (before, after)]
        if mods[0] != mods[1]:
            yield from _valued(before, "", self._unit_of(before, line), known_values)
            yield from _valued("", after, self._unit_of(after, line), known_values)
            return
        if mods[0]:
            yield from _valued(before, after, self._unit_of(before, line), known_values)
            return
        for stretch in tokens.stretches(tokens.lines(before), tokens.lines(after)):
            old, new = "".join(stretch.old), "".join(stretch.new)
            if MOUNT in old + new:  # needed by any pull request, and harmless without one
                yield from _valued(old or new, old or new, "", known_values)
                continue
            unit = "" if stretch.is_common else self._unit_of(old + new, line + stretch.line - 1)
            yield from _valued(old, new, unit, known_values)

    def _unit_of(self, text: str, line: int) -> str:
        """The unit that a part of the Dockerfile belongs to, by what is written in it."""
        if mod := _MOD.search(text):
            is_in_both = mod["name"] in self.old.mods and mod["name"] in self.new.mods
            step = ": its step" if is_in_both else ""
            return self.unit(f"mod {mod['name']}{step}", f"mod {mod['name']}")
        if patch := _PATCH.search(text):
            return self.unit(f"pull request {patch['source']}#{patch['number']}", PULLS)
        if self.moved and (source := self.moved.search(text)):
            return self.unit(source[0], source[0])
        if lone := next((self.lone[file] for file in self.lone if file in text), ""):
            return lone
        return self.unit(f"template, line {line}", TEMPLATE)


def _valued(old: str, new: str, unit: str, known_values: Sequence[SourceValue]) -> Iterator[Segment]:
    """The segments of a marked text: those of its own ``unit``, and the values in it, which are of theirs. Where both
    differ, the text decides, and each side has its own values."""
    if old == new:
        for text, value in values.split(old, known_values):
            if value:
                yield Segment(value.old.encode(), value.new.encode(), value.unit, value.key)
            else:
                yield Segment(text.encode(), text.encode())
        return
    for text, value in values.split(old, known_values):
        yield Segment((value.old if value else text).encode(), b"", unit)
    for text, value in values.split(new, known_values):
        yield Segment(b"", (value.new if value else text).encode(), unit, value.key if value else "")


def _is_git(part: BuildPart, source: str) -> bool:
    return source in part.contexts


def _sources(part: BuildPart) -> set[str]:
    return {name for name, takes in part.takes.items() if "version" in takes and not name.endswith("packages")}

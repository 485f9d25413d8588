"""The difference of two neighbouring numbers, read from their build directories, and from the recipe."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.bisecting import mixture, segmenting, tokens
from builder.bisecting.difference import Axis
from builder.bisecting.mixture import Segment, SegmentedFile
from builder.bisecting.segmenting import RecordedBuild
from builder.comparing import texts
from builder.errors import FileProblemsError
from builder.lock import reading
from builder.lock.model import ImageName
from builder.numbered import build_directory, build_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.bisecting.candidate import BisectCandidate
    from builder.bisecting.mixture import Difference, SourceTree
    from builder.bisecting.session import Bisection
    from builder.project import Project

WHOLE = "the whole image"
_RECIPE = "recipe"
_CONTINUED = re.compile(r"[ \t]*\\\n[ \t]*")
_BEFORE_FLAG = re.compile(r"(?=[ \t]--?[A-Za-z]|\n\Z)")
_LONGEST_NAME = 40


@dataclass(frozen=True)
class NumberSpan:
    """The difference between two numbers: their builds, None where nothing of one has a place in the other, and the
    recipe by which they are served, None where it is the same."""

    old: ImageName
    new: ImageName
    builds: Difference | None
    recipe: SegmentedFile | None

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes, the cheapest first: a recipe is changed without a build."""
        units = tuple(dict.fromkeys(each.unit for each in self.recipe.segments if each.unit)) if self.recipe else ()
        image = self.builds.axes if self.builds else (Axis(WHOLE, (WHOLE,)),)
        return (*([Axis(_RECIPE, units)] if units else []), *image)

    @property
    def every(self) -> frozenset[str]:
        """The units of the image."""
        return frozenset(unit for axis in (self.builds.axes if self.builds else ()) for unit in axis.units)

    @property
    def files(self) -> tuple[SegmentedFile, ...]:
        return self.builds.files if self.builds else ()

    def tree(self, unit: str) -> SourceTree | None:
        """The tree of a source that both builds take from git."""
        parts = self.builds.parts if self.builds else ()
        trees = (tree for part in parts for tree in part.trees if tree.unit == unit and tree.old and tree.new)
        return next(trees, None)

    def package(self, unit: str) -> str:
        """The package whose line in a requirement file is of this unit alone, on both sides; empty where there is
        none."""
        own = {segment.key for file in self.files for segment in file.segments if segment.unit == unit and segment.key}
        package = own.pop().removeprefix(segmenting.PACKAGE) if len(own) == 1 else ""
        return package if package and all(self.versions(package)) else ""

    def versions(self, package: str) -> tuple[str, str]:
        """The version of a package that differs on either side, empty where it is not there."""
        sides = ["", ""]
        for segment in (segment for file in self.files for segment in file.segments):
            if segment.key == f"{segmenting.PACKAGE}{package}":
                for place, line in enumerate((segment.old, segment.new)):
                    sides[place] = line.decode().partition("==")[2].partition(" ")[0].strip() or sides[place]
        return sides[0], sides[1]

    def units_of_image(self, candidate: BisectCandidate) -> frozenset[str]:
        """The units of a candidate that the image has to be made for."""
        return frozenset(unit for unit in candidate.taken if not unit.startswith(f"{_RECIPE},"))

    def recipe_text(self, candidate: BisectCandidate) -> str:
        """The recipe by which a candidate is served; empty for the present one."""
        mixed = self.recipe.mixed(candidate.taken, {}) if self.recipe else None
        return mixed.content.decode() if mixed else ""


def reader(project: Project, bisection: Bisection, text: str) -> Callable[[int, int], NumberSpan]:
    """A function that reads the span of two numbers, each once; ``text`` is the recipe as it is now."""

    @functools.cache
    def read(old: int, new: int) -> NumberSpan:
        names = [ImageName(bisection.repository, number) for number in (old, new)]
        is_first = old == bisection.numbers[0] and bool(bisection.recipe_before)
        recipe = _recipe(bisection.recipe_before, text) if is_first else None
        return NumberSpan(names[0], names[1], _difference(project, names, bisection.platform), recipe)

    return read


def definition(project: Project, name: ImageName) -> str:
    """The definition that a number was built from; empty where none is recorded."""
    record = reading.of(project).image(name)
    return (record.definition if record else None) or ""


def _difference(project: Project, names: list[ImageName], platform: str) -> Difference | None:
    """The difference of two builds; None where nothing of one has a place in the other, one was built elsewhere, or
    a build directory is gone or was edited."""
    try:
        directories = [build_directory.read(project, name) for name in names]
        builds = [RecordedBuild(directory, build_files.read(directory)) for directory in directories]
        return segmenting.difference(builds[0], builds[1], platform)
    except (FileProblemsError, ValueError):
        return None


def _recipe(before: str, after: str) -> SegmentedFile:
    """The recipe in lines, and those of its command in flags: one is taken with its values, on whatever line it is."""
    segments = (
        Segment(old.encode(), new.encode(), "" if old == new else f"{_RECIPE}, {_flag_or_key(old or new)}")
        for old, new in tokens.pairs(_flags(before), _flags(after), _flag_or_key)
    )
    return SegmentedFile(_RECIPE, tuple(segments), old=False, new=False)


def _flags(text: str) -> list[str]:
    """The lines of a recipe, cut in front of each flag, with those that go on by a backslash in one."""
    lines = _CONTINUED.sub(" ", text).splitlines(keepends=True)
    return [token for line in lines for token in _BEFORE_FLAG.split(line) if token]


def _flag_or_key(text: str) -> str:
    words = text.split()
    first = words[0] if words and words[0].startswith("-") else text.strip().partition(":")[0]
    return first.partition("=")[0][:_LONGEST_NAME] or "an empty line"


def change_of(span: NumberSpan, unit: str) -> str:
    """The change that a unit is, as a unified diff of the files that it is in."""
    sides = [mixture.files(span.builds, taken, {}) if span.builds else {} for taken in ((), (unit,))]
    contents = {
        path: [side[path].content if path in side else None for side in sides]
        for path in sorted({*sides[0], *sides[1]})
    }
    for file in (*span.files, *([span.recipe] if span.recipe else ())):
        if file.path == _RECIPE or "python/" in file.path:  # long, and all that matters stands in its own lines
            own = [segment for segment in file.segments if segment.unit == unit]
            contents[file.path] = [b"".join(each.old for each in own), b"".join(each.new for each in own)]
    changes = [texts.of_contents(old, new, path) for path, (old, new) in contents.items() if old != new]
    return "".join(
        f"--- {span.old}/{change.path}\n+++ {span.new}/{change.path}\n"
        + "".join(f"{line}\n" for line in change.lines or [f"{change.path} {change.kind}: {change.note}"])
        for change in changes
    )

"""The difference of two neighbouring numbers, read from their build directories, and what the search is to know of
it."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.bisecting import segmenting, tokens
from builder.bisecting.difference import Axis, BisectSubject
from builder.bisecting.mixture import Segment, SegmentedFile
from builder.bisecting.segmenting import RecordedBuild
from builder.errors import FileProblemsError
from builder.lock import reading
from builder.lock.model import ImageName
from builder.numbered import build_directory, build_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.bisecting.candidate import BisectCandidate
    from builder.bisecting.mixture import Difference
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
        builds = [_recorded(project, name) for name in names]
        difference = _difference(builds[0], builds[1], bisection.platform)
        is_first = old == bisection.numbers[0] and bool(bisection.recipe_before)
        recipe = _recipe(bisection.recipe_before, text) if is_first else None
        return NumberSpan(names[0], names[1], difference, recipe)

    return read


def definition(project: Project, name: ImageName) -> str:
    """The definition that a number was built from; empty where none is recorded."""
    record = reading.of(project).image(name)
    return (record.definition if record else None) or ""


def subject(
    bisection: Bisection,
    spans: Callable[[int, int], NumberSpan],
    impossible: Callable[[int, int, frozenset[str]], str],
) -> BisectSubject:
    """The bisection as the search takes it."""
    return BisectSubject(
        numbers=bisection.numbers,
        axes=lambda old, new: spans(old, new).axes,
        impossible=impossible,
        find_fix=bisection.find_fix,
        single=bisection.judge.is_constant,
    )


def _difference(old: RecordedBuild | None, new: RecordedBuild | None, platform: str) -> Difference | None:
    """The difference of two builds; None where nothing of one has a place in the other, or a file was edited into what
    no build writes."""
    try:
        return segmenting.difference(old, new, platform) if old and new else None
    except ValueError:
        return None


def _recorded(project: Project, name: ImageName) -> RecordedBuild | None:
    """The build of a number; None of one that was built elsewhere, or whose build directory is gone or damaged."""
    try:
        directory = build_directory.read(project, name)
        return RecordedBuild(directory, build_files.read(directory))
    except FileProblemsError:
        return None


def _recipe(before: str, after: str) -> SegmentedFile:
    """The recipe in lines, and those of its command in flags: one is taken with its values, on whatever line it is."""
    segments = (
        Segment(
            "".join(part.old).encode(),
            "".join(part.new).encode(),
            "" if part.is_common else f"{_RECIPE}, {_flag_or_key(*part.new, *part.old)}",
        )
        for stretch in tokens.stretches(_flags(before), _flags(after))
        for part in tokens.single(stretch)
    )
    return SegmentedFile(_RECIPE, tuple(segments), old=False, new=False)


def _flags(text: str) -> list[str]:
    """The lines of a recipe, cut in front of each flag, with those that go on by a backslash in one."""
    lines = tokens.lines(_CONTINUED.sub(" ", text))
    return [token for line in lines for token in _BEFORE_FLAG.split(line) if token]


def _flag_or_key(text: str, *_: str) -> str:
    words = text.split()
    first = words[0] if words and words[0].startswith("-") else text.strip().partition(":")[0]
    return first.partition("=")[0][:_LONGEST_NAME] or "an empty line"


def texts_of(span: NumberSpan, unit: str) -> tuple[str, str]:
    """The text of a unit on either side, as far as it is text of files."""
    files = (*(span.builds.files if span.builds else ()), *([span.recipe] if span.recipe else []))
    own = [segment for file in files for segment in file.segments if segment.unit == unit]
    return tuple("".join(getattr(each, side).decode("utf-8", "replace") for each in own) for side in ("old", "new"))  # type: ignore[return-value]

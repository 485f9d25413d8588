"""The values in rendered texts that come from a source: its version, its commit, its date; the base image."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.plan import bake

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from builder.numbered.build_directory import BuildPart

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
    mount = f"from={bake.source_context(source)},"
    dates = (_DATE.search(text) for text in instructions if mount in text)
    return next((date["date"] for date in dates if date), "")


def _base(takes: Mapping[str, str]) -> str:
    content, requested = takes.get("content", ""), takes.get("image", "")
    return requested if content.startswith("local:") else f"{requested}@{content}"


def marked(text: str, values: Sequence[SourceValue], *, is_new: bool) -> str:
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

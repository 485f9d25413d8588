"""The places of options and their values in a recipe's file: in its command, or in the default that brings a value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import Location
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.definitions.recipes.recipe import Recipe

_PLACEHOLDER = re.compile(r"(?<!\{)\{([A-Za-z_][A-Za-z0-9_-]*)[^{}]*\}(?!\})")
_NEXT_OPTION = re.compile(r"\s--?[A-Za-z]")


@dataclass(frozen=True)
class UsedOption:
    """An option in a serve command with its ``value``, None where it has none; ``occurrence`` counts options of the
    same spelling, from 0. ``goes_on`` if another word that is no option follows its value."""

    option: str
    value: str | None
    occurrence: int
    goes_on: bool = False


def options(words: Sequence[str]) -> Iterator[UsedOption]:
    """The options in ``words``, in order: ``--name value``, ``--name=value``, ``-tp value``, ``--flag``."""
    counts: dict[str, int] = {}
    for word, following, third in zip(words, (*words[1:], None), (*words[2:], None, None), strict=False):
        if not _is_option(word):
            continue
        option, sign, value = word.partition("=")
        occurrence = counts.get(option, 0)
        counts[option] = occurrence + 1
        if sign:
            yield UsedOption(option, value, occurrence)
        else:
            has_value = following is not None and not _is_option(following)
            goes_on = has_value and third is not None and not _is_option(third)
            yield UsedOption(option, following if has_value else None, occurrence, goes_on)


def _is_option(word: str) -> bool:
    return bool(re.match(r"--?[A-Za-z]", word))


def of_option(recipe: Recipe, used: UsedOption) -> Location:
    """The location of the option in the command; that of the default which brings it where the command does not."""
    offset = _offset(recipe, used)
    if offset is None:
        key = next((key for key, value in recipe.defaults.items() if used.option in str(value)), None)
        return recipe.location("defaults", key) if key else recipe.location("command")
    earlier = recipe.command.count(used.option, 0, offset)
    return yaml_file.location_within(recipe.text, recipe.file, ("command",), used.option, earlier)


def of_value(recipe: Recipe, used: UsedOption, at: int = 0) -> Location:
    """The location of the character ``at`` of the option's value; of the default that it comes from, or of the option
    itself, where the file spells it differently."""
    value = used.value or ""
    option = of_option(recipe, used)
    offset = _offset(recipe, used)
    if offset is None:
        return option
    end = _NEXT_OPTION.search(recipe.command, offset + len(used.option))
    written = recipe.command[offset + len(used.option) : end.start() if end else None]
    for key in _PLACEHOLDER.findall(written):
        default = recipe.defaults.get(key)
        if default is not None:
            start = recipe.location("defaults", key)
            return _within(recipe.text, start, value, at) or start
    return _within(recipe.text, option, value, at) or option


def of_text(recipe: Recipe, written: str) -> Location:
    """The location of a word of the command; of the default that brings it, or of the command itself, where the command
    does not have it."""
    if written in recipe.command:
        return yaml_file.location_within(recipe.text, recipe.file, ("command",), written, 0)
    key = next((key for key, value in recipe.defaults.items() if value == written), None)
    locations = yaml_file.locations(recipe.text, recipe.file)
    # A folder in `model:` is the default of {model}.
    default = locations.get(("defaults", key)) or locations.get((key,)) if key else None
    return default or recipe.location("command")


def _offset(recipe: Recipe, used: UsedOption) -> int | None:
    pattern = rf"(?<![\w-]){re.escape(used.option)}(?![\w-])"
    offsets = [match.start() for match in re.finditer(pattern, recipe.command)]
    return offsets[used.occurrence] if used.occurrence < len(offsets) else None


def _within(text: str, start: Location, value: str, at: int) -> Location | None:
    """The location of the character ``at`` of ``value``, which the file spells as it is or with its braces doubled,
    somewhere after ``start``; None where it does not."""
    index = sum(map(len, text.splitlines(keepends=True)[: start.line - 1])) + start.column - 1
    lines = value.split("\n")
    before = value[:at].split("\n")
    for double in (str, _doubled):
        row = text.find(double(lines[0]), index) if lines[0] else -1
        if row < 0 or (text.count("\n", index, row) > 1 and len(lines[0]) < 2):
            continue
        if len(before) == 1:
            return _location(text, start.file, row + len(double(before[0])))
        line = text.count("\n", 0, row) + len(before)
        content = text.splitlines()[line - 1 : line]
        column = content[0].find(double(lines[len(before) - 1])) if content else -1
        return Location(start.file, line, max(column, 0) + len(double(before[-1])) + 1)
    return None


def _doubled(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _location(text: str, file: str, index: int) -> Location:
    return Location(file, text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index))

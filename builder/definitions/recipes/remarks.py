"""Notes on the text of a recipe that keep it from nothing: keys that nothing reads, and keys that stand twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.errors import Location, Problem
from builder.suggestions import did_you_mean
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from builder.yaml.repetition import Repetition

# Below this, a suggestion would send the author to a key that means something else.
_NEAR = 0.8
_LONGEST = 40


def unknown_keys(data: Mapping[str, Any], keys: Collection[str], text: str, file: str) -> Iterator[Problem]:
    """A note for each key of the recipe that is none of the valid ``keys``: newer launchers have keys of their own."""
    unknown = [key for key in data if key not in keys]
    value_locations = yaml_file.locations(text, file) if unknown else {}
    absent = [key for key in keys if key not in data]
    for key in unknown:
        location = yaml_file.location_of((key,), value_locations, file)
        suggestion = _nearest(key, absent)
        yield Problem(location, f"unknown key `{key}`; {suggestion or 'it is ignored'}")


def _nearest(key: str, absent: Collection[str]) -> str:
    """A suggestion for ``key``: an ``absent`` key that it begins, such as ``solo``, or else one that is spelled nearly
    the same."""
    begun = [choice for choice in absent if len(key) >= 4 and choice.startswith(f"{key}_")]
    if len(begun) == 1:
        return f"did you mean `{begun[0]}`?"
    return did_you_mean(key, absent, code=True, near=_NEAR)


def repeated_keys(repetitions: Iterable[Repetition], file: str) -> Iterator[Problem]:
    """A note for each key that stands twice: launchers take the last one, without a word."""
    for repetition in repetitions:
        name = ".".join(map(str, repetition.path))
        location = Location(file, repetition.line, repetition.column)
        if repetition.same:
            yield Problem(location, f"`{name}` stands in line {repetition.earlier_line} already, with the same value")
            continue
        message = f"`{name}` CONTRADICTS line {repetition.earlier_line}: the last one counts"
        if repetition.values:
            earlier, later = map(_short, repetition.values)
            message += f": {later}, and not {earlier}"
        else:
            message += " as a whole, and nothing of the earlier one does"
        yield Problem(location, message)


def _short(value: str) -> str:
    text = value.strip()
    if not text:
        return "nothing"
    return text if len(text) <= _LONGEST and "\n" not in text else f"{text.splitlines()[0][: _LONGEST - 1]}…"

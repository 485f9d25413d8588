"""The kinds of values in images.lock that hold others: lists, blocks whose keys are names or numbers, and records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.lock.value_kinds import ValueKind, WrongError, whole, wrong
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from builder.lock.lines import Data
    from builder.lock.value_kinds import Problems, Schema

RENAMED = {"turn": "sequence"}
"""Keys that had another name before the first release, by that name."""

_NEVER = object()  # no value is this one


@dataclass(frozen=True)
class Key:
    """A key of a record. ``field`` is what its value is called in the program, where that is not the key; a required
    one may be absent where the key ``unless`` is there."""

    kind: ValueKind
    description: str
    is_required: bool
    is_always_written: bool
    field: str
    unless: str = ""


def needed(kind: ValueKind, description: str, field: str = "") -> Key:
    """A key that every record has."""
    return Key(kind, description, is_required=True, is_always_written=True, field=field)


def needed_unless(other: str, kind: ValueKind, description: str) -> Key:
    """A key that every record without the key ``other`` has. In one with it, an empty value is not written."""
    return Key(kind, description, is_required=True, is_always_written=True, field="", unless=other)


def optional(kind: ValueKind, description: str, *, always: bool = False) -> Key:
    """A key that may be absent. It is not written where its value is the empty one, unless ``always``."""
    return Key(kind, description, is_required=False, is_always_written=always, field="")


def list_of(kind: ValueKind) -> ValueKind:
    """A list, as a tuple."""

    def read(data: Data) -> tuple[Any, ...]:
        if not isinstance(data, list):
            raise wrong("a list", data)
        return tuple(_each(enumerate(data), kind.read).values())

    return ValueKind(
        read,
        lambda definitions: {"type": "array", "items": kind.schema(definitions)},
        lambda values: [kind.write(value) for value in values],
        empty=(),
    )


def mapping(kind: ValueKind, names: ValueKind | None = None) -> ValueKind:
    """A block whose keys are ``names``, or any text, as a dict; it is written in the order of the names."""
    return ValueKind(
        lambda data: _each(_block(data).items(), kind.read, names.read if names else None),
        lambda definitions: {
            "type": "object",
            **({"propertyNames": names.schema(definitions)} if names else {}),
            "additionalProperties": kind.schema(definitions),
        },
        lambda values: {name: kind.write(value) for name, value in sorted(values.items())},
        empty={},
    )


def numbered(kind: ValueKind) -> ValueKind:
    """A block whose keys are whole numbers from 1 on, as a dict; it is written in the order of the numbers."""
    read_number = whole(1).read
    return ValueKind(
        lambda data: _each(_block(data).items(), kind.read, read_number),
        lambda definitions: {
            "type": "object",
            "propertyNames": {"pattern": "^[1-9][0-9]{0,17}$"},
            "additionalProperties": kind.schema(definitions),
        },
        lambda values: {number: kind.write(value) for number, value in sorted(values.items())},
        empty={},
    )


def record(
    make: Callable[..., Any],
    keys: Mapping[str, Key],
    *,
    parts: Callable[[Any], Mapping[str, Any]] = vars,
    name: str = "",
) -> ValueKind:
    """A block with these keys and no other ones. ``make`` gets their values by field; ``parts`` gives them back."""
    readers = {key: (entry.field or key, entry.kind.read) for key, entry in keys.items()}
    required = {key: entry.unless for key, entry in keys.items() if entry.is_required}
    writers = [
        (key, entry.field or key, entry.kind.write, _NEVER if entry.is_always_written else entry.kind.empty)
        for key, entry in keys.items()
    ]

    def read(data: Data) -> Any:
        block = _block(data)
        values: dict[str, Any] = {}
        problems: Problems = []
        for key, item in block.items():
            if key not in readers:
                problems.append(((key,), f"unknown key `{key}`{_nearest(key, readers.keys() - block.keys())}"))
                continue
            field, read_value = readers[key]
            try:
                values[field] = read_value(item)
            except WrongError as error:
                problems += error.under(key)
        missing = [f"`{key}`" for key, other in required.items() if key not in block and other not in block]
        if missing and block.keys() <= readers.keys():
            # not if there is an unknown key: that is probably the missing one, misspelt
            problems.append(((), f"lacks {', '.join(missing)}"))
        if problems:
            raise WrongError(problems)
        return make(**values)

    def write(value: Any) -> dict[str, Any]:
        values = parts(value)
        spared = {key for key, other in required.items() if other and values[other] and not values[key]}
        return {
            key: as_data(values[field])
            for key, field, as_data, empty in writers
            if values[field] != empty and key not in spared
        }

    def describe(definitions: dict[str, Schema]) -> Schema:
        schema: Schema = {"type": "object", "additionalProperties": False}
        schema |= _requirements(required)
        schema["properties"] = {
            key: {"description": entry.description, **entry.kind.schema(definitions)} for key, entry in keys.items()
        }
        return schema

    return ValueKind(read, describe, write, name)


def _requirements(required: Mapping[str, str]) -> Schema:
    """The part of a record's JSON Schema on the keys that it needs: each with the one that makes it needless, if any.
    All of these have the same one."""
    always = [key for key, other in required.items() if not other]
    schema: Schema = {"required": always} if always else {}
    if unless := [key for key, other in required.items() if other]:
        schema |= {"if": {"required": [required[unless[0]]]}, "else": {"required": unless}}
    return schema


def _block(data: Data) -> dict[str, Data]:
    if isinstance(data, dict):
        return data
    raise wrong("a block of keys", data)


def _each(
    items: Iterable[tuple[Any, Data]], read: Callable[[Data], Any], read_key: Callable[[Data], Any] | None = None
) -> dict[Any, Any]:
    """Reads all items, and raises one error for all that is wrong in them."""
    values, problems = {}, []
    for key, item in items:
        try:
            values[read_key(key) if read_key else key] = read(item)
        except WrongError as error:
            problems += error.under(key)
    if problems:
        raise WrongError(problems)
    return values


def _nearest(name: str, free: set[str]) -> str:
    if RENAMED.get(name) in free:
        return f": it is called `{RENAMED[name]}` now"
    suggestion = did_you_mean(name, sorted(free), code=True)
    return f": {suggestion}" if suggestion else ""

"""The kinds of values in images.lock. Each reads data (dicts, lists, strings), writes it, and describes it as JSON
Schema.

Reading returns the value or raises WrongError, which knows the path from the data to each problem. Where nothing is
wrong no path is ever made, which keeps the reading of a good file fast.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.lock.lines import Data

    Path: TypeAlias = tuple[str | int, ...]
    Problems: TypeAlias = list[tuple[Path, str]]

Schema: TypeAlias = "dict[str, Any]"

_WHOLE = re.compile(r"0|[1-9][0-9]{0,17}")
_SCALAR = ["string", "number", "boolean"]  # what other YAML readers make of text: `0.32` is a number to them


class WrongError(Exception):
    """Wrong data; ``problems`` pairs the path to each place with a message."""

    def __init__(self, problems: Problems) -> None:
        super().__init__(problems)
        self.problems = problems

    def under(self, step: str | int) -> Problems:
        """The problems with their paths from one step further out; a message at that step begins with its key."""
        named = f"`{step}`: " if isinstance(step, str) else ""
        return [((step, *path), message if path else named + message) for path, message in self.problems]


def wrong(what: str, data: Data) -> WrongError:
    """The error for data in the place of ``what``."""
    return WrongError([((), f"expected {what}, found {_described(data)}")])


@dataclass(frozen=True)
class ValueKind:
    """One kind. ``write`` is the inverse of ``read``, but for numbers and truth values, which stay what they are.
    ``describe`` makes the JSON Schema, and puts what it refers to into the definitions that it is given; a kind with a
    ``name`` stands there itself. ``empty`` is the value that an absent key stands for."""

    read: Callable[[Any], Any]
    describe: Callable[[dict[str, Schema]], Schema]
    write: Callable[[Any], Any] = lambda value: value
    name: str = ""
    empty: Any = None

    def schema(self, definitions: dict[str, Schema]) -> Schema:
        """The JSON Schema of this kind, or a reference to its place in ``definitions``."""
        if not self.name:
            return self.describe(definitions)
        if self.name not in definitions:
            definitions[self.name] = {}  # takes the place before those that it refers to
            definitions[self.name] = self.describe(definitions)
        return {"$ref": f"#/$defs/{self.name}"}


def _read_text(data: Data) -> str:
    if isinstance(data, str):
        return data
    raise wrong("text", data)


def _read_flag(data: Data) -> bool:
    if data in ("true", "false"):
        return data == "true"
    raise wrong("`true` or `false`", data)


TEXT = ValueKind(_read_text, lambda _: {"type": _SCALAR}, name="text")
"""Text: any scalar, as it was written."""

FLAG = ValueKind(_read_flag, lambda _: {"type": "boolean"}, empty=False)
"""``true`` or ``false``."""


def whole(least: int, name: str = "") -> ValueKind:
    """A whole number from ``least`` on."""

    def read(data: Data) -> int:
        if isinstance(data, str) and _WHOLE.fullmatch(data) and int(data) >= least:
            return int(data)
        raise wrong(f"a whole number from {least} on", data)

    return ValueKind(read, lambda _: {"type": "integer", "minimum": least}, name=name)


def matching(pattern: str, expected: str, *, name: str = "", scalar: bool = False) -> ValueKind:
    """Text that ``pattern`` matches as a whole, which messages call ``expected``. ``scalar`` where some of it is more
    than text to other YAML readers."""
    matches = re.compile(pattern, re.DOTALL).fullmatch
    described = {"type": _SCALAR if scalar else "string", "pattern": f"^{_portable(pattern)}$"}

    def read(data: Data) -> str:
        if isinstance(data, str) and matches(data):
            return data
        raise wrong(expected, data)

    return ValueKind(read, lambda _: described, name=name)


def choice(*values: str, name: str = "") -> ValueKind:
    """One of at least two words."""
    expected = f"{', '.join(f'`{value}`' for value in values[:-1])} or `{values[-1]}`"

    def read(data: Data) -> str:
        if isinstance(data, str) and data in values:
            return data
        raise wrong(expected, data)

    return ValueKind(read, lambda _: {"enum": list(values)}, name=name)


def constant(value: int) -> ValueKind:
    """This number alone."""

    def read(data: Data) -> int:
        if data == str(value):
            return value
        raise wrong(f"`{value}`", data)

    return ValueKind(read, lambda _: {"const": value})


def _portable(pattern: str) -> str:
    """``pattern`` for other programs, to which `\\S` means more or less than it does to Python."""
    return pattern.replace("\\S", "[^ ]")


def _described(data: Data) -> str:
    if isinstance(data, str):
        return f"`{data}`" if len(data) <= 60 else f"`{data[:60]}…`"
    return "nothing" if data is None else "a list" if isinstance(data, list) else "a block of keys"

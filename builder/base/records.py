"""A record is a dataclass in a JSON file; the types of its fields say what the file may contain.

The reader refuses other keys and values of other types. `Annotated[str, PATTERN]` is text that the regular expression
matches as a whole. A file also has a head, such as its format, which must be equal. The last part is the journal of a
command that may be killed, which is also a record.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from builder.base import files
from builder.base.errors import ConflictError
from builder.base.values import dataclass

T = TypeVar("T")
_LARGEST = 64 << 20


class RecordError(ValueError):
    """The data is not a record of the type; ``path`` leads to the wrong value."""

    def __init__(self, message: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(f"`{'.'.join(path)}`: {message}" if path else message)
        self.message = message
        self.path = path


# Writing


def plain(value: object) -> Any:
    """``value`` as JSON data. A dataclass becomes a mapping of its fields, or a text if it defines one, as the name of
    an image does. A path becomes a text; mappings and sequences are converted item by item."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, Iterable):
        return [plain(each) for each in value]
    kind: Any = type(value)
    if names := _names(kind):
        return {name: plain(getattr(value, name)) for name in names}
    return str(value)


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    has_text = not dataclasses.is_dataclass(kind) or kind.__str__ is not object.__str__
    return () if has_text else tuple(field.name for field in dataclasses.fields(kind))


def text_of(record: object, head: Mapping[str, object]) -> str:
    """The text of a file with this ``head`` and record."""
    return json.dumps({**head, **plain(record)}, indent=1, ensure_ascii=False) + "\n"


# Reading


def read_file(path: Path, kind: type[T], head: Mapping[str, object] | None = None, largest: int = _LARGEST) -> T:
    """The record in a file of at most ``largest`` bytes. Raises OSError, RecordError."""
    return parse(files.read_plain_file(path, largest), kind, head)


def parse_json(text: bytes | str) -> Any:
    """The value of untrusted JSON. Raises ValueError if it is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse(text: bytes | str, kind: type[T], head: Mapping[str, object] | None = None) -> T:
    """The record in the text of a file. Raises RecordError."""
    try:
        data = parse_json(text)
    except ValueError as error:
        raise RecordError(f"not JSON: {error}") from None
    for key, value in (head or {}).items():
        if not isinstance(data, dict) or data.pop(key, None) != value:
            raise RecordError(f"expected {value}; another version of builder wrote this file", (key,))
    return record(kind, data)


def record(kind: type[T], data: object) -> T:
    """The value of a type in JSON ``data``. Raises RecordError."""
    hint: Any = kind
    value: T = _reader(hint)(data)
    return value


_PLAIN = {str: "text", int: "a whole number", bool: "true or false", type(None): "null"}
_Reader = Callable[[Any], Any]


@cache
def _reader(hint: Any) -> _Reader:
    """The function that reads a value of a type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda data: data
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint)
    if origin is typing.Annotated:
        return _text(arguments[1])
    if origin is Literal:
        return _exactly(f"one of {', '.join(map(str, arguments))}", lambda data: data in arguments)
    if origin in (typing.Union, types.UnionType):
        return _union(tuple(map(_reader, arguments)))
    if origin is tuple:
        return _sequence(_reader(arguments[0])) if arguments[-1] is ... else _fixed(tuple(map(_reader, arguments)))
    if origin in (Mapping, dict):
        return _mapping(_reader(arguments[0]), _reader(arguments[1]))
    if hint is float:
        return _number
    return _exactly(_PLAIN[hint], lambda data: type(data) is hint)


def _exactly(expected: str, fits: Callable[[Any], bool]) -> _Reader:
    def read(data: Any) -> Any:
        if fits(data):
            return data
        raise _wrong(expected, data)

    return read


def _text(pattern: str) -> _Reader:
    matches = re.compile(pattern, re.DOTALL).fullmatch
    return _exactly("text in the correct format", lambda data: isinstance(data, str) and matches(data) is not None)


def _number(data: Any) -> float:
    with suppress(OverflowError):  # of a whole number with hundreds of digits
        if type(data) in (int, float) and math.isfinite(data):
            return float(data)
    raise _wrong("a number", data)


def _union(readers: tuple[_Reader, ...]) -> _Reader:
    def read(data: Any) -> Any:
        for reader in readers:
            try:
                return reader(data)
            except RecordError as error:
                last = error
        raise last

    return read


def _dataclass(kind: Any) -> _Reader:
    # A module may import these names only for type checking.
    hints = typing.get_type_hints(kind, localns={"Mapping": Mapping}, include_extras=True)
    fields = dataclasses.fields(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields}
    required = [
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]

    def read(data: Any) -> Any:
        if not isinstance(data, dict):
            raise _wrong("a block of keys", data)
        values = {}
        for key, value in data.items():
            if key not in readers:
                raise RecordError("unknown key", (str(key),))
            values[key] = _inside(str(key), readers[key], value)
        if missing := [name for name in required if name not in values]:
            raise RecordError("this key is missing", (missing[0],))
        return kind(**values)

    return read


def _mapping(read_key: _Reader, read_value: _Reader) -> _Reader:
    def read(data: Any) -> Any:
        if not isinstance(data, dict):
            raise _wrong("a block of keys", data)
        return {_inside(key, read_key, key): _inside(key, read_value, value) for key, value in data.items()}

    return read


def _sequence(reader: _Reader) -> _Reader:
    def read(data: Any) -> Any:
        if not isinstance(data, list):
            raise _wrong("a list", data)
        return tuple(_inside(str(number), reader, each) for number, each in enumerate(data))

    return read


def _fixed(readers: tuple[_Reader, ...]) -> _Reader:
    def read(data: Any) -> Any:
        if not isinstance(data, list) or len(data) != len(readers):
            raise _wrong(f"a list of {len(readers)}", data)
        return tuple(
            _inside(str(number), reader, each) for number, (reader, each) in enumerate(zip(readers, data, strict=True))
        )

    return read


def _inside(step: str, reader: _Reader, data: Any) -> Any:
    try:
        return reader(data)
    except RecordError as error:
        raise RecordError(error.message, (step, *error.path)) from None


def _wrong(expected: str, data: Any) -> RecordError:
    names = {"dict": "a block of keys", "list": "a list", "NoneType": "null"}
    described = names.get(type(data).__name__, f"`{data!s:.60}`")
    return RecordError(f"expected {expected}, found {described}")


# A journal is a record from which a killed command continues. One process holds it, and it is complete on the disk
# before each step. The file is untrusted, so the types of the record check the names in it.


@dataclass(frozen=True)
class Journal(Generic[T]):
    """The journal at ``path``, of records of one ``kind`` and ``format``. Errors name it after ``what``. ``while_held``
    and ``if_unreadable`` are their hints."""

    path: Path
    kind: type[T]
    format: int
    what: str
    while_held: str
    if_unreadable: str

    @property
    def lock(self) -> Path:
        return self.path.with_suffix(".lock")

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Holds the journal. Raises ConflictError if another process holds it."""
        files.make_folder(self.path.parent)
        try:
            with files.locked(self.lock, wait_seconds=0):
                yield
        except files.LockHeldError as error:
            holder = f", process {error.holder}" if error.holder else ""
            raise ConflictError(f"{self.what} is already running{holder}", hint=self.while_held) from None

    @property
    def is_held(self) -> bool:
        return self.lock.exists() and files.is_held(self.lock)

    def write(self, record: T) -> None:
        """Writes the record, and forces it to the disk."""
        files.write_atomically(self.path, text_of(record, {"format": self.format}).encode())

    def read(self) -> T | None:
        """The record, or None if there is no file. Raises ConflictError if the file contains anything else."""
        try:
            return read_file(self.path, self.kind, {"format": self.format})
        except FileNotFoundError:
            return None
        except (OSError, RecordError) as error:
            shown = "/".join(self.path.parts[-3:])
            message = f"{shown} is not a journal of {self.what} that this version of builder can read: {error}"
            raise ConflictError(message, hint=self.if_unreadable) from None

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

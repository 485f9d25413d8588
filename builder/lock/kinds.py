"""Each value of images.lock has a kind, which reads, writes and describes that value.

Problems of the whole file come first, then the kinds of values, then blocks, then the names that others wrote.
`builder.lock.layout` says which kind of value each key has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from builder.base import words
from builder.base.errors import Location, LockError, Problem
from builder.base.words import did_you_mean
from builder.lock.model import ImageName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Data: TypeAlias = "dict[str, Data] | list[Data] | str | None"


# Problems of images.lock as a whole, found before its YAML is read, and what to do about each.

END = "..."  # the last line of every lock: YAML's own mark for the end of a document
TAKE_BACK = "take back the committed one with `git checkout -- images.lock`, or `builder lock --recover` makes it anew"
CORRECT = "correct these lines, or take back the committed file with `git checkout -- images.lock`"
MERGE = (
    "`builder lock --merge` keeps what both sides built and gives one of each pair the next free number; or take one"
    " side whole with `git checkout --ours images.lock` or `--theirs`"
)

_MARKERS = ("<<<<<<<", "|||||||", "=======", ">>>>>>>")
_MARKER_LINE = re.compile(r"^(?:<<<<<<<|\|\|\|\|\|\|\||=======|>>>>>>>)(?: .*|\r?)$", re.MULTILINE)


def lock_error(problems: Iterable[Problem], hint: str) -> LockError:
    """One error that names every problem, in the order of the file."""
    return LockError("\n".join(str(problem) for problem in sorted(set(problems))), hint=hint)


def conflict_marks(text: str) -> list[tuple[int, str]]:
    """The lines that git left of an unfinished merge: the number of each, from 1 on, and its text."""
    if not any(marker in text for marker in _MARKERS):
        return []
    return [(text.count("\n", 0, match.start()) + 1, match[0].strip()) for match in _MARKER_LINE.finditer(text)]


def refuse_cut_off(text: str, file: str) -> None:
    """Raises LockError for an empty file, and for one without its last line: a part of a lock that happens to be valid
    YAML would pass for a lock with fewer images."""
    written = text.rstrip()
    if not written:
        raise lock_error([Problem(Location(file), "the file is empty")], TAKE_BACK)
    if written.rpartition("\n")[2] != END:
        place = Location(file, written.count("\n") + 1)
        raise lock_error([Problem(place, f"cut off here: the last line must be `{END}`")], TAKE_BACK)


# The kinds of values in images.lock. Each reads data (dicts, lists, strings), writes it, and describes it as JSON
# Schema. Reading returns the value or raises WrongError, which knows the path from the data to each problem. Where
# nothing is wrong no path is ever made, which keeps the reading of a good file fast.

if TYPE_CHECKING:
    ValuePath: TypeAlias = tuple[str | int, ...]
    Problems: TypeAlias = list[tuple[ValuePath, str]]

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
    ``name`` stands there itself. ``empty`` is the value that an absent key stands for, ``pattern`` the regular
    expression of a kind of text."""

    read: Callable[[Any], Any]
    describe: Callable[[dict[str, Schema]], Schema]
    write: Callable[[Any], Any] = lambda value: value
    name: str = ""
    empty: Any = None
    pattern: str = ""

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

    return ValueKind(read, lambda _: described, name=name, pattern=pattern)


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


# The kinds of values in images.lock that hold others: lists, blocks whose keys are names or numbers, and records.

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


def needed_unless(other: str, kind: ValueKind, description: str, field: str = "") -> Key:
    """A key that every record without the key ``other`` has. In one with it, an empty value is not written."""
    return Key(kind, description, is_required=True, is_always_written=True, field=field, unless=other)


def optional(kind: ValueKind, description: str, *, always: bool = False, field: str = "") -> Key:
    """A key that may be absent. It is not written where its value is the empty one, unless ``always``."""
    return Key(kind, description, is_required=False, is_always_written=always, field=field)


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


def record(
    make: Callable[..., Any],
    keys: Mapping[str, Key],
    *,
    rest: tuple[ValueKind, ValueKind] | None = None,
    rest_after: str = "",
    parts: Callable[[Any], Mapping[str, Any]] = vars,
    name: str = "",
) -> ValueKind:
    """A block with these keys. ``make`` gets their values by field; ``parts`` gives them back. Where there is a
    ``rest``, the kinds of further keys and of their values, both have those as the field ``rest``, in the order of the
    file, in which they follow the key ``rest_after``, or all others; else there are no other keys."""
    readers = {key: (entry.field or key, entry.kind.read) for key, entry in keys.items()}
    required = {key: entry.unless for key, entry in keys.items() if entry.is_required}
    writers = [
        (key, entry.field or key, entry.kind.write, _NEVER if entry.is_always_written else entry.kind.empty)
        for key, entry in keys.items()
    ]

    later_keys = list(keys)[list(keys).index(rest_after) + 1 :] if rest_after else []

    def read(data: Data) -> Any:
        block = _block(data)
        values, problems, is_misspelt = _read_members(block, readers, rest)
        missing = [f"`{key}`" for key, other in required.items() if key not in block and other not in block]
        if missing and not is_misspelt:
            problems.append(((), f"lacks {', '.join(missing)}"))
        if problems:
            raise WrongError(problems)
        return make(**values)

    def write(value: Any) -> dict[str, Any]:
        values = parts(value)
        spared = {
            key for key, field, _, _ in writers if (other := required.get(key)) and values[other] and not values[field]
        }
        block = {
            key: as_data(values[field])
            for key, field, as_data, empty in writers
            if values[field] != empty and key not in spared
        }
        if rest is None:
            return block
        further = {str(key): rest[1].write(item) for key, item in values["rest"].items()}
        later = {key: block[key] for key in later_keys if key in block}
        return {**{key: item for key, item in block.items() if key not in later}, **further, **later}

    def describe(definitions: dict[str, Schema]) -> Schema:
        schema: Schema = {"type": "object", "additionalProperties": rest[1].schema(definitions) if rest else False}
        if rest:
            schema["propertyNames"] = {"anyOf": [{"enum": list(keys)}, rest[0].schema(definitions)]}
        schema |= _requirements(required)
        schema["properties"] = {
            key: {"description": entry.description, **entry.kind.schema(definitions)} for key, entry in keys.items()
        }
        return schema

    return ValueKind(read, describe, write, name)


def _read_members(
    block: dict[str, Data],
    readers: Mapping[str, tuple[str, Callable[[Any], Any]]],
    rest: tuple[ValueKind, ValueKind] | None,
) -> tuple[dict[str, Any], Problems, bool]:
    """The values of a record's block by field, and what is wrong. The last is true if there is an unknown key, which
    is probably a missing one, misspelt."""
    values: dict[str, Any] = {"rest": {}} if rest else {}
    problems: Problems = []
    is_misspelt = False
    for key, item in block.items():
        try:
            if key in readers:
                field, read_value = readers[key]
                values[field] = read_value(item)
            elif rest and is_a(rest[0], key):
                values["rest"][rest[0].read(key)] = rest[1].read(item)
            else:
                is_misspelt = True
                problems.append(((key,), f"unknown key `{key}`{_nearest(key, readers.keys() - block.keys())}"))
        except WrongError as error:
            problems += error.under(key)
    return values, problems, is_misspelt


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
    suggestion = did_you_mean(name, sorted(free), code=True)
    return f": {suggestion}" if suggestion else ""


# The kinds of names in images.lock. They become folders, arguments and lines of Dockerfiles: whoever wrote the file,
# none of them leads to another folder, begins like an option, or holds a line break.

_PART = "[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"(?:localhost|{_LABEL}(?:\.{_LABEL})+|{_LABEL}(?=:))(?::[0-9]{{1,5}})?"

REPOSITORY = matching(
    # https://github.com/distribution/reference/blob/main/regexp.go; shorter, as it is part of a file's name.
    rf"(?=.{{1,200}}$)(?:{_HOST}/)?{_PART}(?:/{_PART})*",
    "a repository's name such as `vllm-node-tf5`",
    name="repository_name",
)
DEFINITION = matching(words.DEFINITION, "a definition's name, which is a folder's", name="definition_name", scalar=True)
PLATFORM = matching("[a-z0-9]+(?:/[a-z0-9][a-z0-9_.-]*){1,2}", "a platform such as `linux/arm64`", name="platform")
PART = matching("[A-Za-z0-9][A-Za-z0-9._+-]*", "a name of letters, digits and . _ + -", name="part_name")
INSTANCE = matching("[A-Za-z0-9][A-Za-z0-9._-]*", "the name of a buildx instance", name="instance", scalar=True)
COMMIT_START = matching("[0-9a-f]{4,40}", "the first digits of a commit, or all 40", name="commit_start")
REFERENCE = matching(
    "[A-Za-z0-9][A-Za-z0-9._:/@+-]*",
    "an image as engines name it, such as `debian:bookworm-slim`",
    name="reference",
    scalar=True,
)
VERSION = matching("[A-Za-z0-9][A-Za-z0-9.!+_~-]*", "a version such as `0.32.0+cpu`", name="version_text", scalar=True)
TOKEN = matching("[A-Za-z0-9][A-Za-z0-9:._+-]*", "a digest such as `sha256:` and hex digits", name="token", scalar=True)
MOMENT = matching("(?:[0-9]{4}-[0-9]{2}-[0-9]{2}[0-9A-Za-z:.+-]*)?", "a time, or nothing", name="moment")
LINE = matching(r"(?![-\s])[^\x00-\x1f\x7f]+", "one line that is no option", name="line", scalar=True)
ADDRESS = matching(
    r"(?:https?|ssh|git|file)://[^\s\x00-\x1f\x7f'\"\\$`#]+",
    "the address of a git repository, such as `https://host/owner/repository.git`",
    name="address",
)
REF = matching("[A-Za-z0-9][A-Za-z0-9._/+-]*", "a branch, tag or commit", name="ref", scalar=True)
REVISION = matching(
    r"(?![-/])(?!.*\.\.)[^\s\x00-\x20\x7f]+", "a branch, tag or commit of a model", name="revision", scalar=True
)
RECIPE = matching(
    words.RECIPE_FILE,
    "the path of a recipe in the project, such as `recipes/chat.yaml`",
    name="recipe_file",
    scalar=True,
)
MODEL = matching(
    r"(?!(?:.*/)?\.\.(?:/|$))"
    r"(?:[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*(?::[A-Za-z][A-Za-z0-9_+-]*)?)?|(?:/|~/|\./)[^\x00-\x1f\x7f]+)",
    "a model of the Hub such as `Qwen/Qwen3-0.6B`, or the path of a folder",
    name="model_id",
)

PINNED = matching(
    f"(?:{VERSION.pattern})(?: (?:{COMMIT_START.pattern}))?",
    "a version such as `0.32.0+cpu`, and the first digits of its commit",
    scalar=True,
)
_NUMBER_PATTERN = "[1-9][0-9]{0,17}"


def _read_image_name(data: Data) -> ImageName:
    repository, _, number = _IMAGE_NAME.read(data).rpartition(":")
    return ImageName(repository, int(number))


_IMAGE_NAME = matching(
    f"(?:{REPOSITORY.pattern.replace('$)', ':[0-9]+$)')}):{_NUMBER_PATTERN}",
    "a numbered image such as `vllm-node-tf5:7`",
)
IMAGE_NAME = ValueKind(_read_image_name, _IMAGE_NAME.describe, str, name="image_name")
NUMBER = ValueKind(
    whole(1).read, lambda _: {"type": "string", "pattern": f"^{_NUMBER_PATTERN}$"}, str, name="image_number"
)


def is_a(kind: ValueKind, text: str) -> bool:
    """True if ``text`` is of this kind."""
    try:
        kind.read(text)
    except WrongError:
        return False
    return True


def or_nothing(kind: ValueKind) -> ValueKind:
    """The same kind, or ``null`` as None."""
    return ValueKind(
        lambda data: None if data is None else kind.read(data),
        lambda definitions: {"anyOf": [kind.schema(definitions), {"type": "null"}]},
    )

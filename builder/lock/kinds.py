"""Each value of images.lock has a kind, which reads, writes and describes that value.

Problems of the whole file come first, then the kinds of values, then blocks, then the names that others wrote.
`builder.lock.layout` says which kind of value each key has.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from builder.base import words
from builder.base.errors import LockError, Problem
from builder.base.words import did_you_mean
from builder.lock.model import ImageName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

Data: TypeAlias = "dict[str, Data] | list[Data] | str | None"


# Problems of images.lock as a whole, found before its YAML is read, and what to do about each.

END = "..."  # the last line of every lock: YAML's own mark for the end of a document
TAKE_BACK = "take back the committed one with `git checkout -- images.lock`, or `builder lock --recover` makes it again"
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


# The kinds of values. Each reads data (dicts, lists, strings), writes it, and has a JSON Schema. Reading returns the
# value or raises WrongError, which knows the path from the data to each problem. Where nothing is wrong no path is ever
# made, which keeps the reading of a good file fast.

if TYPE_CHECKING:
    ValuePath: TypeAlias = tuple[str | int, ...]
    Problems: TypeAlias = list[tuple[ValuePath, str]]

Schema: TypeAlias = "dict[str, Any]"


class WrongError(Exception):
    """Wrong data; ``problems`` pairs the path to each place with a message."""

    def __init__(self, problems: Problems) -> None:
        super().__init__(problems)
        self.problems = problems

    def under(self, step: str | int) -> Problems:
        """The problems with their paths from one step further out; a message at that step begins with its key."""
        named = f"`{step}`: " if isinstance(step, str) else ""
        return [((step, *path), message if path else named + message) for path, message in self.problems]


@dataclass(frozen=True)
class ValueKind:
    """One kind. ``write`` is the inverse of ``read``, but for numbers and truth values, which stay what they are.
    ``pattern`` is the regular expression of a scalar."""

    read: Callable[[Any], Any]
    schema: Schema
    write: Callable[[Any], Any] = lambda value: value
    pattern: str = ""


def scalar(
    pattern: str,
    expected: str,
    schema: Schema | None = None,
    convert: Callable[[str], Any] | None = None,
    write: Callable[[Any], Any] = lambda value: value,
    types: Sequence[str] = ("string",),
) -> ValueKind:
    """A scalar that ``pattern`` matches as a whole, which messages call ``expected``. ``types`` are those of other YAML
    readers: to them, the text `0.32` may be a number."""
    matches = re.compile(pattern, re.DOTALL).fullmatch
    # `\S` means more or less to other programs than it does to Python.
    portable = "^(?:" + pattern.replace("\\S", "[^ ]") + ")$"

    def read(data: Data) -> Any:
        if isinstance(data, str) and matches(data):
            return convert(data) if convert else data
        raise _wrong(expected, data)

    return ValueKind(read, schema or {"type": list(types), "pattern": portable}, write, pattern)


def whole(least: int) -> ValueKind:
    """A whole number from ``least``, 0 or 1, on."""
    pattern = "[1-9][0-9]{0,17}" if least else "0|[1-9][0-9]{0,17}"
    return scalar(pattern, f"a whole number from {least} on", {"type": "integer", "minimum": least}, int)


ANY = ("string", "number", "boolean")
TEXT = scalar(".*", "text", {"type": list(ANY)})
"""Text: any scalar, as it was written."""

FLAG = scalar("true|false", "`true` or `false`", {"type": "boolean"}, lambda text: text == "true")
"""``true`` or ``false``."""


def list_of(kind: ValueKind) -> ValueKind:
    """A list, as a tuple."""

    def read(data: Data) -> tuple[Any, ...]:
        if not isinstance(data, list):
            raise _wrong("a list", data)
        return tuple(_each(enumerate(data), kind.read).values())

    return ValueKind(
        read, {"type": "array", "items": kind.schema}, lambda values: [kind.write(value) for value in values]
    )


def mapping(kind: ValueKind, names: ValueKind) -> ValueKind:
    """A block whose keys are ``names``, as a dict; in the file they are in their own order."""
    return ValueKind(
        lambda data: _each(_block(data).items(), kind.read, names.read),
        {"type": "object", "propertyNames": names.schema, "additionalProperties": kind.schema},
        lambda values: {str(name): kind.write(value) for name, value in sorted(values.items())},
    )


def record(
    keys: Mapping[str, tuple[ValueKind, str]],
    required: str = "",
    fields: Mapping[str, str] = MappingProxyType({}),
    make: Callable[..., Any] | None = None,
    parts: Callable[[Any], Mapping[str, Any]] = lambda value: value if isinstance(value, dict) else vars(value),
    rest: tuple[ValueKind, ValueKind] | None = None,
) -> ValueKind:
    """A block with these ``keys``, each with its kind and a description. ``fields`` has the name of a value in the
    program, where that is not the key. ``make`` gets the values by field; ``parts`` gives them back. A value that is
    empty or false is not written, unless its key is ``required``. ``rest`` has the kinds of further keys and of their
    values, which are the field ``rest``; without it, there are no other keys."""
    needed = required.split()
    all_needed = frozenset(needed)
    names = {key: fields.get(key, key) for key in keys}
    reads = {key: kind.read for key, (kind, _) in keys.items()}

    def read(data: Data) -> Any:
        block = _block(data)
        if all_needed <= block.keys():
            with suppress(KeyError, WrongError):  # named below
                own = {key: item for key, item in block.items() if key in names} if rest else block
                values = {names[key]: reads[key](item) for key, item in own.items()}
                if rest:
                    further = ((key, item) for key, item in block.items() if key not in names)
                    values["rest"] = {rest[0].read(key): rest[1].read(item) for key, item in further}
                return make(**values) if make else values
        raise WrongError(list(_problems(block, reads, needed, rest)))

    def write(value: Any) -> dict[str, Any]:
        values = parts(value)
        members = ((key, kind, values.get(names[key])) for key, (kind, _) in keys.items())
        block = {key: kind.write(item) for key, kind, item in members if item or key in needed}
        return block | ({str(key): rest[1].write(item) for key, item in values["rest"].items()} if rest else {})

    properties = {key: {"description": text, **kind.schema} for key, (kind, text) in keys.items()}
    schema: Schema = {
        "type": "object",
        **({"required": needed} if needed else {}),
        **({"propertyNames": {"anyOf": [{"enum": list(keys)}, rest[0].schema]}} if rest else {}),
        "properties": properties,
        "additionalProperties": rest[1].schema if rest else False,
    }
    return ValueKind(read, schema, write)


def _wrong(what: str, data: Data) -> WrongError:
    """The error for data in the place of ``what``."""
    if isinstance(data, str):
        described = f"`{data}`" if len(data) <= 60 else f"`{data[:60]}…`"
    else:
        described = "nothing" if data is None else "a list" if isinstance(data, list) else "a block of keys"
    return WrongError([((), f"expected {what}, found {described}")])


def _problems(
    block: dict[str, Data],
    reads: Mapping[str, Callable[[Any], Any]],
    needed: Sequence[str],
    rest: tuple[ValueKind, ValueKind] | None,
) -> Iterator[tuple[ValuePath, str]]:
    """Everything that is wrong in a block, which `record` describes."""
    is_misspelt = False
    for key, item in block.items():
        try:
            if key in reads:
                reads[key](item)
            elif rest and is_a(rest[0], key):
                rest[1].read(item)
            else:
                is_misspelt = True
                suggestion = did_you_mean(key, sorted(reads.keys() - block.keys()), code=True)
                yield (key,), f"unknown key `{key}`" + (f": {suggestion}" if suggestion else "")
        except WrongError as error:
            yield from error.under(key)
    missing = ", ".join(f"`{key}`" for key in needed if key not in block)
    if missing and not is_misspelt:
        yield (), f"lacks {missing}"


def _block(data: Data) -> dict[str, Data]:
    if isinstance(data, dict):
        return data
    raise _wrong("a block of keys", data)


def _each(
    items: Iterable[tuple[Any, Data]], read: Callable[[Data], Any], read_key: Callable[[Any], Any] = lambda key: key
) -> dict[Any, Any]:
    """Reads all items, and raises one error for all that is wrong in them."""
    items = list(items)
    with suppress(WrongError):
        return {read_key(key): read(item) for key, item in items}
    values, problems = {}, []
    for key, item in items:
        try:
            values[read_key(key)] = read(item)
        except WrongError as error:
            problems += error.under(key)
    if problems:
        raise WrongError(problems)
    return values


# The kinds of names in images.lock. They become folders, arguments and lines of Dockerfiles: whoever wrote the file,
# none of them leads to another folder, begins like an option, or holds a line break.

_PART = "[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"(?:localhost|{_LABEL}(?:\.{_LABEL})+|{_LABEL}(?=:))(?::[0-9]{{1,5}})?"

REPOSITORY = scalar(
    # https://github.com/distribution/reference/blob/main/regexp.go; shorter, as it is part of a file's name.
    rf"(?=.{{1,200}}$)(?:{_HOST}/)?{_PART}(?:/{_PART})*",
    "a repository's name such as `vllm-node-tf5`",
)
DEFINITION = scalar(words.DEFINITION, "a definition's name, which is a folder's", types=ANY)
PLATFORM = scalar("[a-z0-9]+(?:/[a-z0-9][a-z0-9_.-]*){1,2}", "a platform such as `linux/arm64`")
PART = scalar("[A-Za-z0-9][A-Za-z0-9._+-]*", "a name of letters, digits and . _ + -")
INSTANCE = scalar("[A-Za-z0-9][A-Za-z0-9._-]*", "the name of a buildx instance", types=ANY)
COMMIT_START = scalar("[0-9a-f]{4,40}", "the first digits of a commit, or all 40")
REFERENCE = scalar(
    "[A-Za-z0-9][A-Za-z0-9._:/@+-]*", "an image as engines name it, such as `debian:bookworm-slim`", types=ANY
)
VERSION = scalar("[A-Za-z0-9][A-Za-z0-9.!+_~-]*", "a version such as `0.32.0+cpu`", types=ANY)
TOKEN = scalar("[A-Za-z0-9][A-Za-z0-9:._+-]*", "a digest such as `sha256:` and hex digits", types=ANY)
MOMENT = scalar("(?:[0-9]{4}-[0-9]{2}-[0-9]{2}[0-9A-Za-z:.+-]*)?", "a time, or nothing")
LINE = scalar(r"(?![-\s])[^\x00-\x1f\x7f]+", "one line that is no option", types=ANY)
ADDRESS = scalar(
    r"(?:https?|ssh|git|file)://[^\s\x00-\x1f\x7f'\"\\$`#]+",
    "the address of a git repository, such as `https://host/owner/repository.git`",
)
REF = scalar("[A-Za-z0-9][A-Za-z0-9._/+-]*", "a branch, tag or commit", types=ANY)
REVISION = scalar(r"(?![-/])(?!.*\.\.)[^\s\x00-\x20\x7f]+", "a branch, tag or commit of a model", types=ANY)
RECIPE = scalar(words.RECIPE_FILE, "the path of a recipe in the project, such as `recipes/chat.yaml`", types=ANY)
MODEL = scalar(
    r"(?!(?:.*/)?\.\.(?:/|$))"
    r"(?:[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*(?::[A-Za-z][A-Za-z0-9_+-]*)?)?|(?:/|~/|\./)[^\x00-\x1f\x7f]+)",
    "a model of the Hub such as `Qwen/Qwen3-0.6B`, or the path of a folder",
)

NUMBER = whole(1)
NUMBER = replace(NUMBER, schema={"type": "string", "pattern": f"^{NUMBER.pattern}$"})


def _image_name(text: str) -> ImageName:
    repository, _, number = text.rpartition(":")
    return ImageName(repository, int(number))


IMAGE_NAME = scalar(
    f"(?:{REPOSITORY.pattern.replace('$)', ':[0-9]+$)')}):{NUMBER.pattern}",
    "a numbered image such as `vllm-node-tf5:7`",
    convert=_image_name,
)

NUMBER_OR_IMAGE = scalar(
    f"{NUMBER.pattern}|(?:{IMAGE_NAME.pattern})",
    "a number, or a numbered image such as `vllm-node-tf5:7`",
    {"type": ["string", "integer"], "pattern": f"^(?:{NUMBER.pattern}|{IMAGE_NAME.pattern})$", "minimum": 1},
    convert=lambda text: _image_name(text) if ":" in text else int(text),
    write=lambda image: image if isinstance(image, int) else str(image),
)


def is_a(kind: ValueKind, text: str) -> bool:
    """True if ``text`` is of this kind."""
    try:
        kind.read(text)
    except WrongError:
        return False
    return True

"""Each key of images.lock has a kind of value, which reads, writes and describes that value.

Problems of the whole file and its line format come first, then the kinds of values, blocks and names.
The records with all keys follow, then the conversion of a lock to file data, and the JSON Schema.
The reader, the writer and the schema all use these records.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from builder.base import words
from builder.base.errors import Location, LockError, Problem, UsageError
from builder.base.words import did_you_mean
from builder.lock.model import VERSION as FORMAT
from builder.lock.model import (
    Adoption,
    BasePin,
    GitPin,
    ImageName,
    IncludedPin,
    Lock,
    LockedPackage,
    Model,
    NumberedImage,
    Pairing,
    Pins,
    PullPin,
    PythonPin,
    Repository,
    SourcePin,
    Version,
    WheelPin,
    latest_first,
    sequences_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


# Problems of images.lock as a whole, found before its YAML is read, and what to do about each.

END = "..."  # the last line of every lock: YAML's own mark for the end of a document
TAKE_BACK = "take back the committed one with `git checkout -- images.lock`, or `builder lock --recover` makes it anew"
CORRECT = "correct these lines, or take back the committed file with `git checkout -- images.lock`"
RENUMBER = "`builder lock --renumber` keeps what both sides built and gives one of each pair the next free number"
MERGE = f"{RENUMBER}; or take one side whole with `git checkout --ours images.lock` or `--theirs`"

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


# The lines of images.lock as ``builder.lock.text`` writes them: how a string stands on one, and a reader of them.
# Nearly every file that is read was written by this program, and importing and running a YAML parser takes several
# times as long as all the rest. Any other layout is left to ``builder.lock.yaml_tree``, which reads all YAML and
# names what is wrong; where both can read a text, they read the same.

Data: TypeAlias = "dict[str, Data] | list[Data] | str | None"

# Patterns of scalars on one line. Possessive, so that a long line that does not match costs no more than one that does.
# The quoted one is narrower than YAML: it has only the escapes that are written here.
_PLAIN_TEXT = r"[A-Za-z0-9_/](?:[A-Za-z0-9_./+=<>~!@,;()\[\]*%$^&'\"-]++|:(?! |\Z)| (?![ #:]|\Z))*+"
_NOT_AS_IT_IS = r"\x00-\x1f\"\\\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff"
_QUOTED_TEXT = rf'"(?:[^{_NOT_AS_IT_IS}]++|\\u(?!d[89a-f])[0-9a-f]{{4}}|\\["\\nt])*+"'

LONGEST_KEY = 1000  # in characters; YAML wants the colon within 1024 after the start of a key

_LINE = re.compile(rf"((?:  )*)(- )?(?:({_PLAIN_TEXT}|{_QUOTED_TEXT}):(?: (.+))?|(?<=- )(.+))")
_COMMENT = re.compile(" *#[ -~]*")  # others may hold what YAML takes for a line break
_PLAIN = re.compile(_PLAIN_TEXT)
_QUOTED = re.compile(_QUOTED_TEXT)
# What YAML 1.1 (PyYAML) or 1.2 (yq, Go) takes for a number, a date, a truth value or nothing. Times stay plain: they
# are times to those readers and text to this one.
_OTHER_TYPE = re.compile(
    r"[0-9][0-9_]*(?::[0-5]?[0-9])*(?:\.[0-9_]*)?(?:e[-+]?[0-9]+)?|0x[0-9a-f_]+|0o[0-7_]+|0b[01_]+"
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}|null|true|false|yes|no|on|off|y|n",
    re.IGNORECASE,
)
_ESCAPED = re.compile(f"[{_NOT_AS_IT_IS}]")
_ESCAPE = re.compile(r"\\(?:u(....)|(.))")
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
_LONG = {"n": "\n", "t": "\t"}
_SURROGATE = re.compile("[\ud800-\udfff]")


def quote(text: str) -> str:
    """``text`` as a YAML scalar on one line. Raises UsageError for what is not Unicode text: bytes that Python could
    not decode in an argument or a file name."""
    if _PLAIN.fullmatch(text) and not _OTHER_TYPE.fullmatch(text):
        return text
    if _SURROGATE.search(text):
        raise UsageError(f"{text!r} is not UTF-8 text, so images.lock cannot hold it", hint="write it in UTF-8")
    return f'"{_ESCAPED.sub(_escape, text)}"'


def unquote(quoted: str) -> str:
    """The string that a scalar in double quotes stands for, as ``quote`` writes it."""
    inner = quoted[1:-1]
    return _ESCAPE.sub(_unescape, inner) if "\\" in inner else inner


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    return _SHORT.get(character) or f"\\u{ord(character):04x}"


def _unescape(match: re.Match[str]) -> str:
    code, short = match.groups()
    return chr(int(code, 16)) if code else _LONG.get(short, short)


class _OtherLayoutError(Exception):
    """A line that this program did not write."""


def read_layout(text: str) -> Data:
    """The data of ``text``, every scalar as text and None for ``null``; None alone where the layout is another one."""
    try:
        return _read(text.rstrip().removesuffix(END)) or None
    except _OtherLayoutError:
        return None


def _read(text: str) -> dict[str, Data]:
    root: dict[str, Data] = {}
    around: list[Any] = [root]  # the block or list that is open at each depth
    opened: str | None = None  # the key whose value begins on the next line
    for indent, dash, key, value, item in _lines(text):
        depth = len(indent) // 2
        if opened is not None:
            around.append([] if dash else {})
            around[-2][opened] = around[-1]
            opened = None
        else:
            del around[depth + 1 :]
        if depth != len(around) - 1 or isinstance(around[depth], list) != bool(dash):
            raise _OtherLayoutError
        if item:
            around[depth].append(_value(item))
            continue
        if dash:
            around.append({})
            around[depth].append(around[-1])
        name = _name(key, around[-1])
        if value:
            around[-1][name] = _value(value)
        else:
            opened = name
    if opened is not None:
        raise _OtherLayoutError
    return root


def _lines(text: str) -> Iterator[tuple[str, ...]]:
    for line in text.split("\n"):
        if line and not _COMMENT.fullmatch(line):
            match = _LINE.fullmatch(line)
            if not match:
                raise _OtherLayoutError
            yield match.groups()


def _name(key: str, block: dict[str, Data]) -> str:
    name = unquote(key) if key[0] == '"' else key
    if name in block or len(key) > LONGEST_KEY:
        raise _OtherLayoutError
    return name


def _value(text: str) -> Data:
    if _PLAIN.fullmatch(text) and text not in ("Null", "NULL"):
        return text if text != "null" else None
    if _QUOTED.fullmatch(text):
        return unquote(text)
    if text == "[]":
        return []
    if text == "{}":
        return {}
    raise _OtherLayoutError


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


# The kinds of values in images.lock that hold others: lists, blocks whose keys are names or numbers, and records.

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


# The keys of images.lock, in the order of the file, each with the kind of its value and a description. Reading,
# writing and the JSON Schema all come from here.

_POSITIVE = whole(1, name="positive")
_COMMIT = matching("[0-9a-f]{40}", "a commit of 40 hex digits", name="commit")
_TIME = matching(
    "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?Z",
    "a time in UTC such as `2026-11-20T22:00:00Z`",
    name="time",
)
_COMMIT_OR_NOTHING = or_nothing(COMMIT_START)
_SHA256 = matching("[0-9a-f]{64}", "a SHA-256 of 64 hex digits")
_DIGEST = matching("sha256:[0-9a-f]{64}", "a digest such as `sha256:` and 64 hex digits")
_NOTE = replace(TEXT, empty="")
_MOMENT = replace(MOMENT, empty="")
_RECIPE = or_nothing(RECIPE)
_STATUS = choice("untested", "good", "bad", name="status")

_PULL = record(
    PullPin,
    {
        "number": needed(_POSITIVE, "the number of the pull request"),
        "head": needed(_COMMIT, "its last commit when it was pinned"),
        "sha256": needed(_SHA256, "the SHA-256 of its vendored patch, which the project keeps as a file"),
        "base": optional(replace(REF, empty=""), "the branch that it was opened for, where the definition names one"),
    },
    name="pull",
)
_GIT = record(
    GitPin,
    {
        "git": needed(ADDRESS, "the address of the repository, without a login"),
        "asked": needed(REF, "the branch, tag or commit that was asked for", "requested"),
        "commit": needed(_COMMIT, "the commit that it stood for"),
        "version": needed(VERSION, "what the repository's tags make of the commit"),
        "date": needed(_TIME, "when the commit was made"),
        "pulls": optional(list_of(_PULL), "the pull requests on top, in this order"),
    },
    name="git",
)
_WHEEL = record(
    WheelPin,
    {
        "asked": needed(
            LINE, "the requirement, such as vllm==0.32.0, and `from URL` for an index of its own", "requested"
        ),
        "version": needed(VERSION, "the version that it stood for"),
        "commit": optional(_COMMIT_OR_NOTHING, "the commit that the wheel names, where it names one", always=True),
    },
    name="wheel",
)


_INCLUDED = record(
    IncludedPin,
    {
        "base": needed(REFERENCE, "the base image that it comes with, as resolved"),
        "version": needed(VERSION, "its version in there"),
        "commit": optional(_COMMIT_OR_NOTHING, "its commit, where the image names it", always=True),
    },
    name="included",
)


def _read_source(data: Data) -> SourcePin:
    keys = data if isinstance(data, dict) else {}
    pin: SourcePin = (_GIT if "git" in keys else _INCLUDED if "base" in keys else _WHEEL).read(data)
    return pin


def _write_source(pin: SourcePin) -> dict[str, Any]:
    kind = _GIT if isinstance(pin, GitPin) else _INCLUDED if isinstance(pin, IncludedPin) else _WHEEL
    block: dict[str, Any] = kind.write(pin)
    return block


def _describe_source(definitions: dict[str, Schema]) -> Schema:
    return {
        "if": {"type": "object", "required": ["git"]},
        "then": _GIT.schema(definitions),
        "else": {
            "if": {"type": "object", "required": ["base"]},
            "then": _INCLUDED.schema(definitions),
            "else": _WHEEL.schema(definitions),
        },
    }


_SOURCE = ValueKind(_read_source, _describe_source, _write_source, name="source")

_PACKAGE_LINES = mapping(
    matching(
        r"[A-Za-z0-9][A-Za-z0-9.!+_~-]*( sha256:[0-9a-f]{64})*",
        "a version and `sha256:` hashes of 64 hex digits",
        name="package",
        scalar=True,
    ),
    PART,
)


def _read_packages(data: Data) -> tuple[LockedPackage, ...]:
    lines: dict[str, str] = _PACKAGE_LINES.read(data)
    packages = []
    for name in sorted(lines):
        version, *hashes = lines[name].split(" sha256:")
        packages.append(LockedPackage(name, version, tuple(hashes)))
    return tuple(packages)


def _write_packages(packages: tuple[LockedPackage, ...]) -> dict[str, str]:
    return {
        package.name: " ".join((package.version, *(f"sha256:{digest}" for digest in package.hashes)))
        for package in sorted(packages, key=lambda package: package.name)
    }


_PACKAGES = ValueKind(_read_packages, _PACKAGE_LINES.describe, _write_packages, empty=())

_BASE = record(
    BasePin,
    {
        "asked": needed(REFERENCE, "as the definition says it, such as debian:bookworm-slim", "requested"),
        "resolved": needed(
            REFERENCE, "the digest in the registry, or local:sha256:… of an image that only the engine has"
        ),
        "created": optional(_MOMENT, "when a base that brings vLLM was made"),
        "packages": optional(_PACKAGES, "by name: the version of each Python package in a base that brings vLLM"),
    },
    name="base",
)

_PYTHON = record(
    PythonPin,
    {
        "asked": needed(list_of(LINE), "the requirements that were asked for", "requested"),
        "newest": needed(MOMENT, "when the newest file among them was uploaded; the date of the image"),
        "as_of": optional(_MOMENT, "nothing was taken that was uploaded later; no limit where it is absent"),
        "undated": optional(list_of(LINE), "the packages whose index gives no upload dates: of any age"),
        "packages": needed(
            _PACKAGES,
            "by name: the version, and sha256:… of every file that suits the platform",
        ),
    },
    name="python",
)
_PINS = record(
    Pins,
    {
        "base": optional(_BASE, "the base image"),
        "sources": optional(mapping(_SOURCE, PART), "vLLM and FlashInfer, each from git, as a wheel or with the base"),
        "python": optional(_PYTHON, "the Python packages in the image"),
        "build": optional(_PYTHON, "the Python packages that it takes to build the sources from git"),
    },
    name="pins",
)

_VERSION = record(
    Version,
    {
        "version": needed(VERSION, "the version in the image"),
        "commit": optional(_COMMIT_OR_NOTHING, "its commit, where it is known", always=True),
    },
    name="version",
)
_PAIRING = record(
    dict,
    {
        "sequence": needed(
            _POSITIVE, "its place among the model's pairings: the highest serves, the one below did before"
        ),
        "recipe": optional(_RECIPE, "the recipe of the pairing"),
        "revision": optional(or_nothing(REVISION), "the revision of the model, or of a checkpoint: NAME@REVISION"),
        "status": optional(_STATUS, "how the model does on this image"),
        "note": optional(_NOTE, "what was seen"),
    },
    parts=dict,
    name="pairing",
)
_ADOPTION = record(
    Adoption,
    {
        "image": needed(REFERENCE, "its name or id in the engine when it got its number"),
        "digests": optional(list_of(REFERENCE), "the names by which registries may have it"),
    },
    name="adoption",
)


class NumberBlock(NamedTuple):
    """A number's block: its record, its sequence among what was current, and by model the pairing with it, as the
    fields of a Pairing and its sequence."""

    image: NumberedImage
    sequence: int | None
    models: dict[str, dict[str, Any]]


def _number_block(sequence: int | None = None, models: Any = None, **fields: Any) -> NumberBlock:
    return NumberBlock(NumberedImage(**{"definition": "", "input_hash": "", **fields}), sequence, models or {})


def _number_parts(block: NumberBlock) -> dict[str, Any]:
    return {**vars(block.image), "sequence": block.sequence, "models": block.models}


_IMAGE = record(
    _number_block,
    {
        "built": needed(_TIME, "when it was built, or got its number as it was"),
        "sequence": optional(
            _POSITIVE, "its place among what was current: the highest is current, the one below was before"
        ),
        "definition": needed_unless("adopted", DEFINITION, "the image definition"),
        "adopted": optional(_ADOPTION, "the image of others that got this number as it was"),
        "platform": needed(PLATFORM, "linux/arm64 or linux/amd64"),
        "pinned": optional(FLAG, "true where `prune` keeps it"),
        "fingerprint": needed(TOKEN, "the identity of its content: the same on every engine that holds it"),
        "input_hash": needed_unless(
            "adopted", TOKEN, "one hash over all that went in; a build with the same one is not made again"
        ),
        "pruned": optional(_TIME, "when it was removed on purpose"),
        "size": needed(whole(0), "bytes, as the engine counts them"),
        "status": optional(_STATUS, "how the image does"),
        "note": optional(_NOTE, "what was seen"),
        "recipe": optional(_RECIPE, "the recipe that it was built from"),
        "digest": optional(_DIGEST, "its digest in the registry of builder.yaml, where it was pushed"),
        "builder": optional(INSTANCE, "the `docker buildx` instance that built it, where not the engine itself"),
        "gpu": optional(TEXT, "the GPU on which it passed its checks, where it was built beside one"),
        "unchecked": optional(mapping(TEXT, PART), "the checks that were left out when it was built: by name, why"),
        "rebuilt": optional(TEXT, "when an equivalent image that was built again took its place, and what differed"),
        "versions": optional(mapping(_VERSION, PART), "what is in it, by name"),
        "mods": optional(mapping(TOKEN, PART), "the baked mods: by name, the hash of what each holds"),
        "models": optional(mapping(_PAIRING, MODEL), "the models that it serves, or served before, by Hugging Face id"),
    },
    parts=_number_parts,
    name="image",
)
_REPOSITORY = record(
    dict,
    {
        "next": optional(_POSITIVE, "the number of the next build, where it is not the one after the highest"),
        "numbers": optional(numbered(_IMAGE), "the images, by number", always=True),
    },
    parts=dict,
    name="repository",
)

FILE = record(
    dict,
    {
        "version": needed(constant(FORMAT), "the format of the file; a newer one is refused"),
        "definitions": optional(
            mapping(mapping(_PINS, PLATFORM), DEFINITION),
            "what each image definition is pinned to: by definition, then by platform",
        ),
        "images": optional(mapping(_REPOSITORY, REPOSITORY), "the numbered images, by repository"),
    },
    parts=dict,
)
"""The whole file. A repository, and the file itself, are dicts of what stands at their keys."""


# Converting a lock to the data of its file, and back. In the file, the block of a number holds its pairings and its
# sequence among the current numbers; in a lock, a model has its pairings and a repository the order of its numbers.

if TYPE_CHECKING:
    Numbers = dict[int, NumberBlock]


def lock_of(data: Data) -> Lock:
    """Converts the data of a file to the lock. Raises WrongError with the path to all that is wrong."""
    sections = FILE.read(data)
    blocks = sections.get("images", {})
    numbers: dict[str, Numbers] = {name: block.get("numbers", {}) for name, block in blocks.items()}
    images = {name: _repository(block.get("next", 1), numbers[name]) for name, block in blocks.items()}
    return Lock(sections.get("definitions", {}), images, _models(numbers))


def data_of(lock: Lock) -> dict[str, Any]:
    """Converts a lock to the data of its file: dicts and lists in its order, numbers and truth values as they are."""
    pairings = _pairings(lock)
    images = {name: _repository_block(name, repository, pairings) for name, repository in lock.images.items()}
    data: dict[str, Any] = FILE.write({"version": FORMAT, "definitions": lock.pins, "images": images})
    return data


def _repository(next_number: int, numbers: Numbers) -> Repository:
    order = latest_first({number: block.sequence for number, block in numbers.items() if block.sequence})
    images = {number: block.image for number, block in numbers.items()}
    above = max(images, default=0) + 1
    return Repository(max(next_number, above), order[0] if order else None, order[1:], images)


def _models(repositories: dict[str, Numbers]) -> dict[str, Model]:
    pairings: dict[str, dict[ImageName, Pairing]] = {}
    order: dict[str, dict[ImageName, int]] = {}
    for repository, numbers in repositories.items():
        for number, block in numbers.items():
            for model, fields in block.models.items():
                name = ImageName(repository, number)
                order.setdefault(model, {})[name] = fields.pop("sequence")
                pairings.setdefault(model, {})[name] = Pairing(name, **fields)
    models = {}
    for model in sorted(pairings):
        latest, *before = (pairings[model][name] for name in latest_first(order[model]))
        models[model] = Model(latest, tuple(before))
    return models


def _pairings(lock: Lock) -> dict[ImageName, dict[str, dict[str, Any]]]:
    """The pairings with each image: by model, the fields of each and its sequence."""
    pairings: dict[ImageName, dict[str, dict[str, Any]]] = {}
    for name, model in lock.models.items():
        for pairing, sequence in sequences_of((model.pairing, *model.previous)).items():
            pairings.setdefault(pairing.image, {})[name] = {**vars(pairing), "sequence": sequence}
    return pairings


def _repository_block(
    name: str, repository: Repository, pairings: dict[ImageName, dict[str, dict[str, Any]]]
) -> dict[str, Any]:
    order = sequences_of((*([repository.current] if repository.current else []), *repository.previous))
    numbers = {
        number: NumberBlock(image, order.get(number), pairings.get(ImageName(name, number), {}))
        for number, image in repository.numbers.items()
    }
    above = max(numbers, default=0) + 1
    return {"next": repository.next if repository.next > above else None, "numbers": numbers}


# lock.schema.json, made from the records: ``make reference`` writes it (``python -m builder.lock.kinds``).

PATH = Path(__file__).parent / "lock.schema.json"
_WIDTH = 120


def text() -> str:
    """The JSON Schema of images.lock."""
    definitions: dict[str, Schema] = {}
    whole = FILE.describe(definitions)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "images.lock: what every numbered image was built from, and which image serves which model",
    }
    return _pretty({**head, **whole, "$defs": definitions}, "", 0) + "\n"


def _pretty(value: Any, indent: str, before: int) -> str:
    """``value`` on one line where it fits below ``before`` characters, else with each of its parts on its own."""
    import json

    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict) or not value or before + len(line) <= _WIDTH:
        return line
    deeper = indent + "  "
    parts = []
    for key, part in value.items():
        start = f"{deeper}{json.dumps(key)}: "
        parts.append(start + _pretty(part, deeper, len(start) + 1))
    return "{\n" + ",\n".join(parts) + f"\n{indent}}}"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")

"""This page checks the data of images.lock against its JSON Schema, lock.schema.json.

The texts of errors come first, then git's conflict marks, then the check.
The check is written here because it runs at each start of the program, and importing a library takes longer. It
supports only the keywords that the schema uses. It treats every scalar as text, so it reads only `pattern`; `type` is
for other programs.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from builder.base import words
from builder.base.errors import LockError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    ValuePath: TypeAlias = tuple[str | int, ...]
    Place: TypeAlias = tuple["Place", str | int] | tuple[()]
    """The place of a value: that of the block around it, and its key there. Most places are never named."""
    Problems: TypeAlias = list[tuple[ValuePath, str]]
    Check: TypeAlias = Callable[["Data", Place, Problems], None]

Data: TypeAlias = "dict[str, Data] | list[Data] | str | None"

END = "..."  # the last line of every lock: YAML's own mark for the end of a document
# With HEAD, git restores the file even during a merge, and even if the damage is already in the index.
TAKE_BACK = (
    "restore the committed file: `git checkout HEAD -- images.lock`, or rebuild it with `builder lock --recover`"
)
QUOTE = f"correct this line: a note with a colon, a comma or a `#` needs double quotes; or {TAKE_BACK}"
CORRECT = "correct these lines, or restore the committed file with `git checkout HEAD -- images.lock`"
MERGE = (
    "`builder lock --merge` keeps what both sides built, and renumbers one image if both gave the same number; to"
    " keep one side only: `git checkout --ours images.lock` or `--theirs`"
)

_MARKER_LINE = re.compile(r"^(?:<<<<<<<|\|\|\|\|\|\|\||=======|>>>>>>>)(?: .*|\r?)$", re.MULTILINE)


def lock_error(problems: Iterable[Problem], hint: str) -> LockError:
    return LockError("\n".join(str(problem) for problem in sorted(set(problems))), hint=hint)


def conflict_marks(text: str) -> list[tuple[int, str]]:
    """The conflict markers of git in ``text``: the number of each line, from 1 on, and the line."""
    return [(text.count("\n", 0, match.start()) + 1, match[0].strip()) for match in _MARKER_LINE.finditer(text)]


@cache
def _schema() -> Any:
    return json.loads(Path(__file__).with_name("lock.schema.json").read_bytes())


def _part(reference: str) -> Any:
    """The part of the schema with this name or reference; the whole schema for an empty one."""
    return _schema()["$defs"][reference.rpartition("/")[2]] if reference else _schema()


def pattern(name: str) -> str:
    return str(_part(name)["pattern"])


def is_a(name: str, data: Data) -> bool:
    """True if ``data`` is of the named kind in the schema. Names become folders, arguments and lines of Dockerfiles: no
    valid name leads to another folder, begins like an option, or contains a line break."""
    return _fits(_check_of(name), data)


def problems(data: Data) -> Problems:
    """All problems in the data of a file: for each one, the path to its place and a message."""
    wrong: Problems = []
    _check_of("")(data, (), wrong)
    return wrong


@cache
def _check_of(reference: str) -> Check:
    return _check(_part(reference))


def _check(schema: dict[str, Any]) -> Check:
    if "$ref" in schema:
        return _check_of(schema["$ref"])
    if "if" in schema:
        needed = set(schema["if"].get("required", ()))
        then, otherwise = _check(schema["then"]), _check(schema["else"])
        return lambda data, place, wrong: (then if isinstance(data, dict) and needed <= data.keys() else otherwise)(
            data, place, wrong
        )
    if schema.get("type") == "object":
        return _block(schema)
    if schema.get("type") == "array":
        return _list(_check(schema["items"]))
    alternatives = [pattern(each["$ref"]) for each in schema.get("anyOf", ())]
    expression = "|".join(alternatives) or schema.get("pattern", ".*")
    matches, has_time = re.compile(expression, re.DOTALL).fullmatch, _TIME in expression

    def check(data: Data, place: Place, wrong: Problems) -> None:
        if not (isinstance(data, str) and matches(data) and (not has_time or _is_moment(data))):
            wrong.append(_expected(schema["description"], data, place))

    return check


# This part of a pattern checks only the digits of a time. The day and the hour must also exist.
_TIME = "[0-9]{2}T[0-9]{2}"


def _is_moment(text: str) -> bool:
    """True if ``text`` ends with a valid time, except in the first and the last year that `datetime` supports."""
    try:
        return 1 < datetime.fromisoformat(text.rpartition(" ")[2]).year < 9999
    except ValueError:
        return False


def _list(item: Check) -> Check:
    def check(data: Data, place: Place, wrong: Problems) -> None:
        if not isinstance(data, list):
            wrong.append(_expected("a list", data, place))
            return
        for index, each in enumerate(data):
            item(each, (place, index), wrong)

    return check


def _block(schema: dict[str, Any]) -> Check:
    keys = {key: _check(each) for key, each in schema.get("properties", {}).items()}
    required = schema.get("required", ())
    names = schema.get("propertyNames", {})
    further = schema["additionalProperties"] and (
        _check(names.get("anyOf", [names])[-1]),
        _check(schema["additionalProperties"]),
    )

    def check(data: Data, place: Place, wrong: Problems) -> None:
        if not isinstance(data, dict):
            wrong.append(_expected("a block of keys", data, place))
            return
        unknown = []
        for key, item in data.items():
            inside = (place, key)
            if key in keys:
                keys[key](item, inside, wrong)
            elif not further or (keys and not _fits(further[0], key)):
                unknown.append(key)
            else:
                for each, value in zip(further, (key, item), strict=True):
                    each(value, inside, wrong)
        for key in unknown:
            suggestion = words.did_you_mean(key, sorted(keys.keys() - data.keys()), code=True)
            message = f"unknown key `{key}`" + (f": {suggestion}" if suggestion else "")
            wrong.append((_path((place, key)), message))
        missing = ", ".join(f"`{key}`" for key in required if key not in data)
        if missing and not unknown:  # the unknown key may be the missing one
            wrong.append(_at_key(place, f"lacks {missing}"))

    return check


def _fits(check: Check, data: Data) -> bool:
    wrong: Problems = []
    check(data, (), wrong)
    return not wrong


def _expected(what: str, data: Data, place: Place) -> tuple[ValuePath, str]:
    if isinstance(data, str):
        described = f"`{data}`" if len(data) <= 60 else f"`{data[:60]}…`"
    else:
        described = "nothing" if data is None else "a list" if isinstance(data, list) else "a block of keys"
    return _at_key(place, f"expected {what}, found {described}")


def _at_key(place: Place, message: str) -> tuple[ValuePath, str]:
    path = _path(place)
    return path, f"`{path[-1]}`: {message}" if path and isinstance(path[-1], str) else message


def _path(place: Place) -> ValuePath:
    return (*_path(place[0]), place[1]) if place else ()

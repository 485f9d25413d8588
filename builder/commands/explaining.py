"""Explanations of exit codes and keys of files, from the docstrings of errors and from the schemas."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from builder import definitions, evidence, lock
from builder.base import errors
from builder.base.values import dataclass, replace

# The exit codes of the program. Their meanings are the docstrings of the errors that have them.

_FIXED = {
    0: "done",
    errors.BUG: "a bug; the message names a report to send",
    errors.INTERRUPTED: "interrupted with ^C or SIGTERM; unfinished work is undone",
    errors.CLOSED_PIPE: "the program that reads the output ended first, as `head -1` does",
}


@dataclass(frozen=True)
class ExitCode:
    code: int
    meanings: tuple[str, ...]


def every() -> tuple[ExitCode, ...]:
    """All exit codes, sorted."""
    meanings: dict[int, list[str]] = defaultdict(list, {code: [text] for code, text in _FIXED.items()})
    for kind in errors.BuilderError.__subclasses__():
        first = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        text = re.split(r"[;.](?: |$)", first)[0]
        is_word = text.partition(" ")[0].istitle()
        meanings[kind.exit_code].append(text[0].lower() + text[1:] if is_word else text)
    return tuple(ExitCode(code, tuple(texts)) for code, texts in sorted(meanings.items()))


# The keys of the files that users or this program write, and of the JSON that commands print. Their values and purposes
# come from the schemas.

_DEFINITIONS = Path(definitions.__file__).parent / "schemas"
SCHEMAS = {
    **{
        name: _DEFINITIONS / f"{name}.schema.json"
        for name in ("image", "mod", "recipe", "recipe_v2", "builder", "probe", "checkpoint", "advisory")
    },
    "lock": Path(lock.__file__).parent / "lock.schema.json",
    "evidence": Path(evidence.__file__).parent / "evidence.schema.json",
}
"""The JSON Schema of each file."""

OUTPUTS = {
    f"{name}-json": Path(__file__).parent / "outputs" / f"{name}.schema.json"
    for name in (
        *("build", "run", "stop", "download", "up", "init", "explain", "status", "list", "compare", "why"),
        *("rollback", "doctor", "recipes-check"),
    )
}
"""The JSON Schema of each command's output with ``--json``."""

_TYPES = {
    "object": "mapping",
    "array": "list",
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
}
_NEEDED = ", needed"


@dataclass(frozen=True)
class FileKey:
    """A key: its path in the file, the kind of its value, and its purpose. In the path, ``NAME`` means a name that the
    user chooses, ``[]`` each item of a list."""

    path: str
    kind: str
    text: str


@dataclass(frozen=True)
class DescribedFile:
    """A file: its name, a line about it, and all its keys."""

    name: str
    about: str
    keys: tuple[FileKey, ...]


def every_key() -> tuple[DescribedFile, ...]:
    """All files, in the order of `builder schema`."""
    return tuple(_described(path) for path in SCHEMAS.values())


def outputs() -> dict[str, DescribedFile]:
    """The JSON output of commands, described like files, by the name of the schema. Every key is always present."""
    described = {name: _described(path) for name, path in OUTPUTS.items()}
    return {
        name: replace(each, keys=tuple(replace(key, kind=key.kind.removesuffix(_NEEDED)) for key in each.keys))
        for name, each in described.items()
    }


@functools.cache
def _described(path: Path) -> DescribedFile:
    whole = json.loads(path.read_bytes())
    name, _, about = whole["title"].partition(": ")
    return DescribedFile(name, about, tuple(_keys(whole, whole, "", {})))


def _keys(node: dict[str, Any], whole: dict[str, Any], prefix: str, seen: dict[str, str]) -> Iterator[FileKey]:
    """Every key below ``node``, depth first. ``seen`` has the first path of each definition that several keys share."""
    for form in _forms(node, whole):
        for key, value in form.get("properties", {}).items():
            target = _followed(value, whole)
            below = list(_keys(target, whole, f"{prefix}{key}.", seen))
            before = seen.setdefault(value.get("$ref", ""), f"{prefix}{key}") if "$ref" in value and below else ""
            kind = _kind(target, whole) + (_NEEDED if form is node and key in form.get("required", ()) else "")
            if before and before != f"{prefix}{key}":
                kind, below = f"as `{before}`", []
            yield FileKey(f"{prefix}{key}", kind, value.get("description") or target.get("description", ""))
            yield from below
        if isinstance(form.get("items"), dict):
            yield from _keys(_followed(form["items"], whole), whole, f"{prefix.removesuffix('.')}[].", seen)
        if isinstance(form.get("additionalProperties"), dict):
            yield from _keys(_followed(form["additionalProperties"], whole), whole, f"{prefix}NAME.", seen)


def _forms(node: dict[str, Any], whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for form in [*node.get("oneOf", ()), *(node[key] for key in ("then", "else") if key in node)]:
        yield from _forms(_followed(form, whole), whole)


def _followed(node: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    reference = node.get("$ref", "").removeprefix("#/$defs/")
    target: dict[str, Any] = whole["$defs"][reference] if reference else node
    return target


def _kind(node: dict[str, Any], whole: dict[str, Any]) -> str:
    if "enum" in node:
        special = {None: "null", "": "empty"}
        return ", ".join(dict.fromkeys(special.get(value) or f"`{value}`" for value in node["enum"]))
    if "const" in node:
        return f"`{node['const']}`"
    if "oneOf" in node:
        return " or ".join(dict.fromkeys(_kind(_followed(form, whole), whole) for form in node["oneOf"]))
    kinds = node.get("type", "object")
    if isinstance(kinds, list):
        return "text" if "string" in kinds else _kind({"type": kinds[0]}, whole)
    return _TYPES[kinds]

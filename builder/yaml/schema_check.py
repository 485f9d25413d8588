"""Checking a file of the user's against its JSON Schema: all problems at once, each with its location.

The schemas are the single description of the formats: editors read them, and errors quote their ``description`` texts.
"""

from __future__ import annotations

import functools
import json
import re
from typing import TYPE_CHECKING, Any

from builder.errors import Location, Problem
from builder.suggestions import did_you_mean
from builder.yaml.yaml_file import location_of, locations

if TYPE_CHECKING:
    from pathlib import Path

    from builder.yaml import yaml_file


@functools.cache
def schema(path: Path) -> dict[str, Any]:
    """The JSON Schema in ``path``."""
    loaded: dict[str, Any] = json.loads(path.read_bytes())
    return loaded


@functools.cache
def _validator(path: Path) -> Any:
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator(schema(path))


def problems(data: Any, schema_file: Path, text: str, file: str) -> tuple[Problem, ...]:
    """Every violation of its schema in ``data`` (read from ``text``); empty if there is none."""
    errors = list(_validator(schema_file).iter_errors(data))
    if not errors:
        return ()
    value_locations = locations(text, file)
    collected: list[Problem] = []
    for error in errors:
        collected.extend(_explain(error, schema(schema_file), value_locations, file))
    return tuple(sorted(set(collected)))


def _explain(
    error: Any, root: dict[str, Any], value_locations: dict[yaml_file.Path, Location], file: str
) -> list[Problem]:
    path: yaml_file.Path = tuple(error.instance_path)
    location = location_of(path, value_locations, file)
    parent = _node(root, list(error.schema_path)[:-1])
    kind = type(error.kind).__name__
    if kind == "AdditionalProperties":
        keys = list(parent.get("properties", {}))
        return [
            Problem(location_of((*path, key), value_locations, file), f"unknown key `{key}`{_nearest(key, keys)}")
            for key in error.kind.unexpected
        ]
    if kind == "Required":
        return [Problem(location, f"the key `{error.kind.property}` is missing{_within(path)}")]
    if kind == "PropertyNames":
        name = error.kind.value.instance
        message = f"`{name}` has characters that are not allowed in a name here"
        return [Problem(location_of((*path, name), value_locations, file), message)]
    description = parent.get("description", "")
    complaint = _shape(error, kind, parent)
    return [Problem(location, f"{_named(path)}{complaint}" + (f"; meant is: {description}" if description else ""))]


def _shape(error: Any, kind: str, parent: dict[str, Any]) -> str:
    if kind == "Type" and error.instance is None:
        return "is empty"
    if kind == "Enum":
        return f"{_short(error.instance)} is none of {', '.join(map(str, error.kind.options))}"
    if kind == "Pattern":
        return f"{_short(error.instance)} has characters that are not allowed here"
    if kind in {"Type", "MaxItems", "MaxProperties"}:
        return f"{_short(error.instance)} is not {_wanted(parent)}{_advice(error.instance, parent)}"
    if kind in {"OneOfNotValid", "AnyOf", "OneOfMultipleValid"}:
        return f"{_short(error.instance)} fits none of the forms known here"
    return str(error.message)


def _wanted(node: dict[str, Any]) -> str:
    """The types of a value, without those that are only there so that it may be empty."""
    types = node["type"] if isinstance(node.get("type"), list) else [node.get("type", "anything else")]
    empty = {name for name, most in (("array", "maxItems"), ("object", "maxProperties")) if node.get(most) == 0}
    return " or ".join(_WORDS.get(name, name) for name in types if name not in empty | {"null"})


def _advice(value: Any, node: dict[str, Any]) -> str:
    """Advice for text that was meant as entries or items, and the other way round."""
    if isinstance(value, dict | list) and "string" in node.get("type", ()):
        return "; for text that begins with a bracket or brace, put single quotes around it"
    if isinstance(value, str) and re.match(r"[A-Za-z_][\w-]*:[^\s:/]", value):
        return "; is a space missing after a colon?"
    if isinstance(value, str) and re.match(r"-[^\s-]", value):
        return "; is a space missing after a `-`?"
    return ""


_WORDS = {
    "object": "a mapping (`key: value` lines)",
    "array": "a list (`- value` lines)",
    "string": "text (quote it where YAML reads it as a number or as true and false)",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "empty",
}


def _node(root: dict[str, Any], path: list[str | int]) -> dict[str, Any]:
    node: Any = root
    for part in path:
        if isinstance(node, dict) and "$ref" in node:
            node = _node(root, node["$ref"].removeprefix("#/").split("/"))
        if part == "$ref":
            continue
        node = node[part]
    return node if isinstance(node, dict) else {}


def _nearest(key: str, keys: list[str]) -> str:
    suggestion = did_you_mean(key, keys, code=True)
    return f"; {suggestion}" if suggestion else f"; known here: {', '.join(keys)}" if keys else ""


def _named(path: yaml_file.Path) -> str:
    return f"`{'.'.join(map(str, path))}`: " if path else ""


def _within(path: yaml_file.Path) -> str:
    return f" in `{'.'.join(map(str, path))}`" if path else ""


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "…"

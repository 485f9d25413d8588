"""The values that commands return, as the plain data that ``--json`` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any


def data(value: object, keys: str = "") -> Any:
    """``value`` for JSON: a dataclass by its fields, one that has a text of its own (such as an image's name) and a
    path as that text, mappings and sequences item by item.

    ``keys`` chooses what is shown of a dataclass, or of each in a sequence, in this order: ``size`` is an attribute,
    ``said=message`` one under another name, ``gpu=subject.machine.gpu`` one further inside, null where there is none on
    the way. ``note?`` is null where it is empty, ``seconds~`` has one decimal.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): data(each, keys) for key, each in value.items()}
    if isinstance(value, Iterable):
        return [data(each, keys) for each in value]
    if keys:
        return {name: _shown(value, path, mark) for name, path, mark in _chosen(keys)}
    kind: Any = type(value)
    if names := _names(kind):
        return {name: data(getattr(value, name)) for name in names}
    return str(value)


def _shown(value: object, path: tuple[str, ...], mark: str) -> Any:
    for name in path:
        value = None if value is None else getattr(value, name)
    if mark == "?":
        return data(value or None)
    return round(value, 1) if mark == "~" and isinstance(value, float) else data(value)


@cache
def _chosen(keys: str) -> list[tuple[str, tuple[str, ...], str]]:
    chosen = []
    for word in keys.split():
        text = word.rstrip("?~")
        name, _, path = text.rpartition("=")
        chosen.append((name or path, tuple(path.split(".")), word[len(text) :]))
    return chosen


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    has_text = not is_dataclass(kind) or kind.__str__ is not object.__str__
    return () if has_text else tuple(field.name for field in fields(kind))

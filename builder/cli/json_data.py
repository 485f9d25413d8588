"""The values that commands return, as the plain data that ``--json`` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from builder.base.records import plain


def data(value: object, keys: str = "") -> Any:
    """``value`` for JSON, as `records.plain` has it. ``keys`` chooses what is shown of a dataclass, or of each in a
    sequence, in this order: ``size`` is an attribute, ``said=message`` one under another name,
    ``gpu=subject.machine.gpu`` one further inside, null where there is none on the way. ``note?`` is null where it is
    empty, ``seconds~`` has one decimal."""
    if not keys or value is None or isinstance(value, str | int | float):
        return plain(value)
    if isinstance(value, Mapping):
        return {str(key): data(each, keys) for key, each in value.items()}
    if isinstance(value, Iterable):
        return [data(each, keys) for each in value]
    return {name: _shown(value, path, mark) for name, path, mark in _chosen(keys)}


def _shown(value: object, path: tuple[str, ...], mark: str) -> Any:
    for name in path:
        value = None if value is None else getattr(value, name)
    if mark == "?":
        return plain(value or None)
    return round(value, 1) if mark == "~" and isinstance(value, float) else plain(value)


@cache
def _chosen(keys: str) -> list[tuple[str, tuple[str, ...], str]]:
    chosen = []
    for word in keys.split():
        text = word.rstrip("?~")
        name, _, path = text.rpartition("=")
        chosen.append((name or path, tuple(path.split(".")), word[len(text) :]))
    return chosen

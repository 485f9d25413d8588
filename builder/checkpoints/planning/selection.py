"""Tensors selected by patterns of their names, and names that are made of others."""

from __future__ import annotations

import re
from fnmatch import translate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from builder.definitions.checkpoint_steps import TensorSelection


def name_test(selection: TensorSelection) -> Callable[[str], bool]:
    """A test of names for a selection; its dtype is not looked at."""
    is_wanted, is_excepted = matcher(selection.patterns), matcher(selection.exceptions)
    return lambda name: is_wanted(name) and not is_excepted(name)


def matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """A test of names that is true for those that have one of the patterns."""
    compiled = [re.compile(translate(pattern)) for pattern in patterns]
    return lambda name: any(pattern.match(name) for pattern in compiled)


def renamed(name: str, rename: Mapping[str, str]) -> str:
    """The new name by the first pattern that fits."""
    for old, new in rename.items():
        head, star, tail = old.partition("*")
        if not star and name == old:
            return new
        if star and name.startswith(head) and name.endswith(tail) and len(name) >= len(head) + len(tail):
            return new.replace("*", name[len(head) : len(name) - len(tail)], 1)
    return name


def sibling(name: str, last: str) -> str:
    """The tensor beside ``name`` whose last part is ``last``."""
    head, dot, _ = name.rpartition(".")
    return f"{head}{dot}{last}"

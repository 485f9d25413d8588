"""Turns what a file says (dicts, lists, strings) into values, and names everything that is not what belongs there.

A check takes one piece of data and returns its value or raises WrongError, which knows the path from that piece to
each problem. Where nothing is wrong no path is ever made, which keeps the reading of a good file fast.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from builder.lock.lines import Data

    Path: TypeAlias = tuple[str | int, ...]
    Problems: TypeAlias = list[tuple[Path, str]]
    Check: TypeAlias = Callable[[Any], Any]

RENAMED = {"turn": "sequence"}
"""Keys that had another name before the first release, by that name."""

_WHOLE = re.compile(r"0|[1-9][0-9]{0,17}")


class WrongError(Exception):
    """Data that is not what belongs in its place; ``problems`` pairs the path to each with what is wrong there."""

    def __init__(self, problems: Problems) -> None:
        super().__init__(problems)
        self.problems = problems

    def under(self, step: str | int) -> Problems:
        """The problems as seen from one step further out; a message gets the name that it is about."""
        named = f"`{step}`: " if isinstance(step, str) else ""
        return [((step, *path), message if path else named + message) for path, message in self.problems]


def text(data: Data) -> str:
    """Any scalar, as it was written."""
    if isinstance(data, str):
        return data
    raise _expected("text", data)


def flag(data: Data) -> bool:
    """``true`` or ``false``."""
    if data in ("true", "false"):
        return data == "true"
    raise _expected("`true` or `false`", data)


def whole(least: int) -> Check:
    """A whole number from ``least`` on."""

    def check(data: Data) -> int:
        if isinstance(data, str) and _WHOLE.fullmatch(data) and int(data) >= least:
            return int(data)
        raise _expected(f"a whole number from {least} on", data)

    return check


def matching(pattern: str, what: str) -> Callable[[Data], str]:
    """Text that ``pattern`` matches as a whole; ``what`` says to a person what that is."""
    matches = re.compile(pattern, re.DOTALL).fullmatch

    def check(data: Data) -> str:
        if isinstance(data, str) and matches(data):
            return data
        raise _expected(what, data)

    return check


def optional(check: Check) -> Check:
    """What ``check`` takes, or nothing."""
    return lambda data: None if data is None else check(data)


def list_of(check: Check) -> Check:
    """A list of what ``check`` takes, as a tuple."""

    def check_all(data: Data) -> tuple[Any, ...]:
        if not isinstance(data, list):
            raise _expected("a list", data)
        values, problems = [], []
        for index, item in enumerate(data):
            try:
                values.append(check(item))
            except WrongError as error:
                problems += error.under(index)
        if problems:
            raise WrongError(problems)
        return tuple(values)

    return check_all


def mapping(check: Check, check_key: Check | None = None) -> Check:
    """A block whose keys are names, or what ``check_key`` takes, as a dict."""

    def check_all(data: Data) -> dict[Any, Any]:
        if not isinstance(data, dict):
            raise _expected("a block of keys", data)
        values, problems = {}, []
        for name, item in data.items():
            try:
                values[check_key(name) if check_key else name] = check(item)
            except WrongError as error:
                problems += error.under(name)
        if problems:
            raise WrongError(problems)
        return values

    return check_all


def record(make: Callable[..., Any], *, required: Mapping[str, Check], others: Mapping[str, Check]) -> Check:
    """A block with the keys named and no other ones, which go to ``make`` by name."""
    known = {**required, **others}

    def check_fields(data: Data) -> Any:
        if not isinstance(data, dict):
            raise _expected("a block of keys", data)
        values: dict[str, Any] = {}
        problems: Problems = []
        for name, item in data.items():
            if name not in known:
                problems.append(((name,), f"unknown key `{name}`{_nearest(name, known.keys() - data.keys())}"))
                continue
            try:
                values[name] = known[name](item)
            except WrongError as error:
                problems += error.under(name)
        if data.keys() <= known.keys() and not required.keys() <= data.keys():
            # not beside an unknown key: that is the lacking one, written wrong
            lacking = [f"`{name}`" for name in required if name not in data]
            problems.append(((), f"lacks {', '.join(lacking)}"))
        if problems:
            raise WrongError(problems)
        return make(**values)

    return check_fields


def _expected(what: str, data: Data) -> WrongError:
    return WrongError([((), f"expected {what}, found {_described(data)}")])


def _described(data: Data) -> str:
    if isinstance(data, str):
        return f"`{data}`" if len(data) <= 60 else f"`{data[:60]}…`"
    return "nothing" if data is None else "a list" if isinstance(data, list) else "a block of keys"


def _nearest(name: str, free: set[str]) -> str:
    if RENAMED.get(name) in free:
        return f": it is called `{RENAMED[name]}` now"
    suggestion = did_you_mean(name, sorted(free), code=True)
    return f": {suggestion}" if suggestion else ""

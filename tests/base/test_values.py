"""Frozen dataclasses behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import Any

import pytest

from builder.base import values


class Point:
    """Two numbers, a note that is neither shown nor compared, and tags."""

    x: int
    y: int = 2
    note: str = dataclasses.field(default="", repr=False, compare=False)
    tags: tuple[str, ...] = dataclasses.field(default_factory=tuple)


class Named(Point):
    """A point with a name."""

    name: str = "n"


class Empty:
    """Nothing."""


class Own:  # noqa: PLW1641 (the decorators give it one)
    """A class with its own equality, text and check."""

    x: int

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("negative")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.x % 10 == other.x % 10

    def __repr__(self) -> str:
        return f"<{self.x}>"


def _made(decorator: Any) -> dict[str, Any]:
    """Copies of the classes above, each decorated."""
    made: dict[str, Any] = {}
    for cls in (Point, Named, Empty, Own):
        bases = tuple(made.get(base.__name__, base) for base in cls.__bases__)
        body = {key: value for key, value in vars(cls).items() if key not in {"__dict__", "__weakref__"}}
        if cls is Own:
            del body["__hash__"]
        made[cls.__name__] = decorator(type(cls.__name__, bases, body))
    return made


OURS, THEIRS = _made(values.dataclass(frozen=True)), _made(dataclasses.dataclass(frozen=True))
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Point", (1,), {}),
    ("Point", (1, 3), {"tags": ("a",)}),
    ("Point", (1,), {"note": "other"}),
    ("Named", (1,), {"name": "m"}),
    ("Named", (1, 2, "", (), "m"), {}),
    ("Empty", (), {}),
    ("Own", (7,), {}),
    ("Own", (17,), {}),
]


@pytest.mark.parametrize(("name", "arguments", "named"), CALLS)
def test_values_are_made_shown_and_copied_alike(name: str, arguments: Any, named: Any) -> None:
    ours, theirs = OURS[name](*arguments, **named), THEIRS[name](*arguments, **named)
    assert repr(ours) == repr(theirs)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert copy.deepcopy(ours) == ours
    assert hash(copy.deepcopy(ours)) == hash(ours)
    assert list(inspect.signature(OURS[name]).parameters) == list(inspect.signature(THEIRS[name]).parameters)
    assert OURS[name].__match_args__ == THEIRS[name].__match_args__


def test_values_are_equal_where_those_of_the_library_are() -> None:
    ours, theirs = ([made[name](*given, **named) for name, given, named in CALLS] for made in (OURS, THEIRS))
    assert [[a == b for b in ours] for a in ours] == [[a == b for b in theirs] for a in theirs]


@pytest.mark.parametrize("made", [OURS, THEIRS], ids=["ours", "theirs"])
def test_values_do_not_change(made: dict[str, Any]) -> None:
    value = made["Point"](1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        value.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        del value.x
    with pytest.raises(dataclasses.FrozenInstanceError, match="'other'"):
        value.other = 2
    assert dataclasses.replace(value, y=5) == made["Point"](1, 5)
    assert dataclasses.replace(value, y=5).y == 5


@pytest.mark.parametrize("made", [OURS, THEIRS], ids=["ours", "theirs"])
def test_wrong_arguments_and_checks_are_refused(made: dict[str, Any]) -> None:
    for arguments in ((), (1, 2, "", (), 5)):
        with pytest.raises(TypeError):
            made["Point"](*arguments)
    with pytest.raises(ValueError, match="negative"):
        made["Own"](-1)


@values.dataclass(frozen=True)
class Kept:
    """A value that other processes get."""

    x: int
    more: tuple[int, ...] = ()


def test_values_go_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(Kept(1, (2,)))) == Kept(1, (2,))  # noqa: S301 (written on this line)


def test_other_options_are_those_of_the_library() -> None:
    keywords: Any = values.dataclass(frozen=True, kw_only=True)(type("Keywords", (Kept,), {}))
    assert keywords(1, (2,)).more == (2,)
    ordered: Any = values.dataclass(frozen=True, order=True)(type("Ordered", (), {"__annotations__": {"x": int}}))
    assert ordered(1) < ordered(2)
    changing: Any = values.dataclass(type("Changing", (), {"__annotations__": {"x": int}}))
    value = changing(1)
    value.x = 2
    assert value == changing(2)

"""Records: what is written is read again, and nothing else is taken."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest

from builder.base import records
from builder.base.errors import ConflictError
from builder.base.records import Journal, RecordError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Inner:
    name: Annotated[str, "[a-z]+"]
    seconds: float = 0.0
    kind: Literal["good", "bad"] = "good"


@dataclass(frozen=True)
class Outer:
    numbers: tuple[int, ...]
    by_name: Mapping[Annotated[str, "[a-z]+"], str | None] = field(default_factory=dict)
    inner: tuple[Inner, ...] = ()
    pairs: tuple[tuple[str, int], ...] = ()
    flag: bool = False
    maybe: Inner | None = None
    free: Any = None


WHOLE = Outer((1, 2), {"a": None, "b": "x"}, (Inner("a", 1.5, "bad"),), (("p", 1),), True, Inner("b"), {"x": [1]})
HEAD = {"format": 2}


def test_what_is_written_is_read_again() -> None:
    text = records.text_of(WHOLE, HEAD)
    assert records.parse(text, Outer, HEAD) == WHOLE
    assert text.startswith('{\n "format": 2,\n "numbers": [\n  1,')
    assert text.endswith("}\n")
    assert records.parse('{"numbers": []}', Outer) == Outer(())
    assert (
        records.parse('{"a": {"x": {"name": "b", "seconds": 1}}}', dict[str, dict[str, Inner]])["a"]["x"].seconds == 1
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "expected a block of keys, found a list"),
        ({}, "`numbers`: this key is missing"),
        ({"numbers": [], "number": 1}, "`number`: unknown key"),
        ({"numbers": {}}, "`numbers`: expected a list, found a block of keys"),
        ({"numbers": [1, True]}, "`numbers.1`: expected a whole number, found `True`"),
        ({"numbers": [1.0]}, "`numbers.0`: expected a whole number, found `1.0`"),
        ({"numbers": [], "flag": 1}, "`flag`: expected true or false, found `1`"),
        ({"numbers": [], "by_name": {"A": "x"}}, "`by_name.A`: expected text in the correct format, found `A`"),
        ({"numbers": [], "by_name": {"a": 1}}, "`by_name.a`: expected null, found `1`"),
        (
            {"numbers": [], "inner": [{"name": "a\n"}]},
            "`inner.0.name`: expected text in the correct format, found `a\n`",
        ),
        ({"numbers": [], "inner": [{"name": "a", "kind": "so"}]}, "`inner.0.kind`: expected one of good, bad, found"),
        ({"numbers": [], "inner": [{"name": "a", "seconds": "1"}]}, "`inner.0.seconds`: expected a number, found `1`"),
        ({"numbers": [], "pairs": [["a"]]}, "`pairs.0`: expected a list of 2, found a list"),
    ],
)
def test_what_is_no_record_is_named_by_its_key(data: object, message: str) -> None:
    with pytest.raises(RecordError) as error:
        records.record(Outer, data)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 9000, b"\xff", '{"numbers": [], "maybe": {"name": "a", "seconds": NaN}}']
)
def test_a_text_that_is_no_json_or_has_no_finite_number_is_refused(text: str | bytes) -> None:
    with pytest.raises(RecordError):
        records.parse(text, Outer)


@pytest.mark.parametrize("text", ['{"numbers": []}', '{"format": 3, "numbers": []}', "[]"])
def test_another_version_is_told(text: str) -> None:
    with pytest.raises(RecordError, match="`format`: expected 2; another version of builder wrote this file"):
        records.parse(text, Outer, HEAD)


def test_a_journal_belongs_to_one_process_and_says_what_is_wrong_in_it(tmp_path: Path) -> None:
    def journal() -> Journal[Inner]:
        return Journal(tmp_path / "state/x.json", Inner, 1, "a walk", while_held="wait", if_unreadable="remove it")

    assert journal().read() is None
    assert not journal().is_held
    with journal().hold():
        journal().write(Inner("a"))
        assert journal().is_held
        with pytest.raises(ConflictError, match="a walk is already running, process"), journal().hold():
            pass
    assert not journal().is_held
    assert journal().read() == Inner("a")
    (tmp_path / "state/x.json").write_text(json.dumps({"format": 1, "name": "A"}))
    with pytest.raises(
        ConflictError, match="state/x.json is not a journal of a walk .*: `name`: expected text in the correct format"
    ):
        journal().read()
    journal().remove()
    assert journal().read() is None


def test_a_whole_number_that_no_other_number_is_as_large_as() -> None:
    with pytest.raises(records.RecordError, match="expected a number"):
        records.parse("1" + "0" * 400, float)


def test_json_that_is_nested_too_deeply() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        records.parse_json("[" * 100_000)

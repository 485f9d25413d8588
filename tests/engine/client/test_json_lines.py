"""JSON lines, read in whatever pieces they come."""

from __future__ import annotations

import json

import pytest

from builder.engine import client


def test_objects_however_the_stream_is_cut() -> None:
    stream = b'{"a": 1}\r\n\n{"b": "\xc3\xbc"}\n{"c": 3}'
    for size in (1, 3, 100):
        pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert list(client.objects(pieces)) == [{"a": 1}, {"b": "ü"}, {"c": 3}]


def test_a_stream_that_broke_off() -> None:
    objects = client.objects([b'{"a": 1}\n{"b": '])
    assert next(objects) == {"a": 1}
    with pytest.raises(json.JSONDecodeError):
        next(objects)


@pytest.mark.parametrize(
    ("line", "value"), [('{"a": 1}\n', {"a": 1}), (b'{"a": 1}', {"a": 1}), ("[1]", None), ("text", None), ("", None)]
)
def test_a_line_that_may_be_text(line: str | bytes, value: dict[str, int] | None) -> None:
    assert client.parse_json_line(line) == value

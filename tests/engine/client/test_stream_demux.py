"""A stream of frames, cut at any place."""

from __future__ import annotations

import pytest

from builder.engine import client

LINES = ["one\n", "", "grün 🙂\n", "x" * 70_000]
STREAM = b"".join(
    bytes([1 + number % 2, 0, 0, 0]) + len(line.encode()).to_bytes(4) + line.encode()
    for number, line in enumerate(LINES)
)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 13, 100_000])
def test_the_frames_are_the_same_wherever_the_stream_is_cut(size: int) -> None:
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert [content.decode() for content in client.payloads(pieces)] == LINES


def test_what_broke_off_is_given_as_far_as_it_came() -> None:
    assert client.text(STREAM[:-5]) == "".join(LINES)[:-5]
    assert client.text(STREAM[:10]) == "on"
    assert client.text(STREAM[:5]) == ""

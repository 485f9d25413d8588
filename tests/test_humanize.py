from __future__ import annotations

from datetime import UTC, datetime

import pytest

from builder.base import words

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 kB"),
        (123_456, "123 kB"),
        (5_340_000_000, "5.3 GB"),
        (2 * 10**12, "2.0 TB"),
    ],
)
def test_sizes(count: int, expected: str) -> None:
    assert words.size_text(count) == expected


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        ("2026-11-20T11:59:30Z", "just now"),
        ("2026-11-20T11:55:00Z", "5 min ago"),
        ("2026-11-20T10:00:00Z", "2 hours ago"),
        ("2026-11-19T12:00:00Z", "1 day ago"),
        ("2026-10-01T12:00:00Z", "1 month ago"),
        ("2024-11-01T12:00:00Z", "2 years ago"),
        ("2026-11-20T12:00:10Z", "just now"),
        ("some day", "some day"),
    ],
)
def test_ages(stamp: str, expected: str) -> None:
    assert words.ago_text(stamp, NOW) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.04, "0.0 s"), (59.94, "59.9 s"), (192, "3 min 12 s"), (7500, "2 h 05 min")]
)
def test_durations(seconds: float, expected: str) -> None:
    assert words.duration_text(seconds) == expected

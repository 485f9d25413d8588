from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from builder.base import words
from builder.base.words import did_you_mean

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


@pytest.mark.parametrize(
    ("word", "suggestion"),
    [("bild", "did you mean build?"), ("build", "did you mean build?"), ("xyz", ""), ("", "")],
)
def test_the_nearest_choice_is_suggested(word: str, suggestion: str) -> None:
    assert did_you_mean(word, ["build", "rollback"]) == suggestion


def test_several_are_suggested_where_several_are_wanted() -> None:
    assert did_you_mean("model-1", iter(["model-2", "model-3", "other"]), most=2, code=True) in {
        "did you mean `model-2` or `model-3`?",
        "did you mean `model-3` or `model-2`?",
    }


# Times of images.lock.


def test_a_moment_of_any_zone_is_told_in_utc() -> None:
    moment = datetime(2026, 11, 20, 23, 0, 1, 999_999, tzinfo=timezone(timedelta(hours=1)))
    assert words.timestamp_of(moment) == "2026-11-20T22:00:01Z"


def test_now_is_to_the_second() -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    assert before <= datetime.fromisoformat(words.now()) <= datetime.now(UTC)

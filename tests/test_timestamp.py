"""Times of images.lock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from builder.base import words


def test_a_moment_of_any_zone_is_told_in_utc() -> None:
    moment = datetime(2026, 11, 20, 23, 0, 1, 999_999, tzinfo=timezone(timedelta(hours=1)))
    assert words.timestamp_of(moment) == "2026-11-20T22:00:01Z"


def test_now_is_to_the_second() -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    assert before <= datetime.fromisoformat(words.now()) <= datetime.now(UTC)

from __future__ import annotations

import pytest

from builder import humanize


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 kB"),
        (123_456, "123 kB"),
        (5_340_000_000, "5.3 GB"),
        (2 * 10**12, "2.0 TB"),
    ],
)
def test_sizes(count: int, said: str) -> None:
    assert humanize.of_bytes(count) == said

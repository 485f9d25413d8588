"""The page on the shipped pins names every one that is no package."""

from __future__ import annotations

from pathlib import Path

from builder.lock import reading
from builder.lock.pins import GitPin
from tests import shipped_files

PAGE = Path(__file__).parents[2] / "docs/pins.md"


def test_every_commit_and_digest_is_accounted_for() -> None:
    lock = reading.read(shipped_files.project().lock)
    pinned = [pins for platforms in lock.pins.values() for pins in platforms.values()]
    values = {pin.commit for pins in pinned for pin in pins.sources.values() if isinstance(pin, GitPin)}
    values |= {pins.base.resolved for pins in pinned if pins.base}
    page = PAGE.read_text(encoding="utf-8")
    assert len(values) == 5
    assert {value for value in values if f"`{value}`" not in page} == set()


def test_no_patch_of_others_is_shipped() -> None:
    lock = reading.read(shipped_files.project().lock)
    sources = [pin for platforms in lock.pins.values() for pins in platforms.values() for pin in pins.sources.values()]
    assert not [pin for pin in sources if isinstance(pin, GitPin) and pin.pulls]
    assert not list(shipped_files.project().dockerfiles.glob("*/pulls/*.patch"))

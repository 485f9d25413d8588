"""The page on the shipped pins names every one that is no package."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.building import resolve
from builder.definitions import image
from builder.lock import lock_file
from builder.lock.model import GitPin
from tests import shipped_files

PAGE = Path(__file__).parents[2] / "docs/pins.md"


def test_every_commit_and_digest_is_accounted_for() -> None:
    lock = lock_file.read_lock(shipped_files.project().lock)
    pinned = [pins for platforms in lock.pins.values() for pins in platforms.values()]
    values = {pin.commit for pins in pinned for pin in pins.sources.values() if isinstance(pin, GitPin)}
    values |= {pins.base.resolved for pins in pinned if pins.base}
    page = PAGE.read_text(encoding="utf-8")
    assert len(values) == 6
    assert {value for value in values if f"`{value}`" not in page} == set()


@pytest.mark.parametrize("host", ["linux/amd64", "linux/arm64"])
def test_a_fresh_clone_resolves_nothing(host: str) -> None:
    project = shipped_files.project()
    lock = lock_file.read_lock(project.lock)
    loaded = [image.load_chain(project, name, host) for name in image.definition_names(project)]
    own = [chain for chain in loaded if not any(part.base_sources for part in chain)]
    assert {chain[-1].name for chain in own} == {"cpu", "dflash", "flashqla", "tf5", "tf5-wheel"}
    assert [stale for chain in own if (stale := resolve.stale_chain(lock, chain))] == []


def test_no_patch_of_others_is_shipped() -> None:
    lock = lock_file.read_lock(shipped_files.project().lock)
    sources = [pin for platforms in lock.pins.values() for pins in platforms.values() for pin in pins.sources.values()]
    assert not [pin for pin in sources if isinstance(pin, GitPin) and pin.patches]
    assert not list(shipped_files.project().dockerfiles.glob("*/pulls/*.patch"))

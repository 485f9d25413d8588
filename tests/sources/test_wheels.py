from __future__ import annotations

from pathlib import Path

from builder.sources import wheels
from builder.sources.environment import Settings
from tests.sources.wheelhouse import make_wheel, sha256


def test_a_pinned_wheel_is_staged_for_its_group(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "local", "torch", "2.13.0+cpu")
    make_wheel(tmp_path / "local", "other", "1")
    settings = Settings(find_links=(f"file://{tmp_path / 'local'}",))
    assert wheels.stage(tmp_path / "out", {"cpu-index-1": frozenset([sha256(wheel)])}, settings)
    staged = [str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.whl")]
    assert staged == [f"cpu-index-1/{wheel.name}"]


def test_a_wheel_with_another_hash_stays_where_it_is(tmp_path: Path) -> None:
    make_wheel(tmp_path / "local", "torch", "2.13.0+cpu")
    settings = Settings(find_links=(str(tmp_path / "local"),))
    assert not wheels.stage(tmp_path / "out", {"cpu-index-1": frozenset(["0" * 64])}, settings)
    assert not wheels.stage(tmp_path / "out", {}, settings)
    assert not (tmp_path / "out").exists()

from __future__ import annotations

from pathlib import Path

from builder.lock.pins import LockedPackage, PythonPin
from builder.plan.python import PackageGroup
from builder.sources import wheels
from builder.sources.environment import Settings
from tests.sources.wheelhouse import make_wheel, sha256

GROUPS = (PackageGroup("index-1", "index-1.txt", "https://example.org", ("torch",)),)


def pin(*packages: LockedPackage) -> PythonPin:
    return PythonPin((), "2026-01-01T00:00:00Z", packages)


def test_a_pinned_wheel_is_staged_for_its_group(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "local", "torch", "2.13.0+cpu")
    settings = Settings(find_links=(f"file://{tmp_path / 'local'}",))
    assert wheels.stage(tmp_path / "out", pin(LockedPackage("torch", "2.13.0+cpu", (sha256(wheel),))), GROUPS, settings)
    assert [str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.whl")] == [
        f"index-1/{wheel.name}"
    ]


def test_a_wheel_with_another_hash_version_or_group_stays_where_it_is(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "local", "torch", "2.13.0+cpu")
    make_wheel(tmp_path / "local", "other", "1")
    settings = Settings(find_links=(str(tmp_path / "local"),))
    pins = pin(LockedPackage("torch", "2.13.0+cpu", ("0" * 64,)), LockedPackage("other", "1", (sha256(wheel),)))
    assert not wheels.stage(tmp_path / "out", pins, GROUPS, settings)
    assert not (tmp_path / "out").exists()


def test_what_is_no_wheel_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "not-a-wheel.whl").write_bytes(b"")
    assert not wheels.stage(
        tmp_path / "out", pin(), GROUPS, Settings(find_links=(str(tmp_path), str(tmp_path / "gone")))
    )

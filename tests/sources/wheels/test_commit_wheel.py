"""The wheel of one commit, found by the real uv on the index of that commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.definitions.image import Index, PythonRequirements
from builder.sources import wheels
from builder.sources.git import UserSettings
from builder.sources.wheels import CommitWheel
from tests.sources.wheelhouse import Served, make_commit_index, make_wheel, serving, sha256

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


COMMIT, ANOTHER, BARE = "e2f56c309d2a28899c68975a7e104502d56deb8f", "ab" * 20, "cd" * 20
VERSION = "0.11.2.dev363+ge2f56c309.cu130"
WANTS = PythonRequirements("3.12", "2.39", (), indexes=(Index("https://example.org/other", ("torch",)),))


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """The index of one commit with a wheel for each machine type, and that of another, which holds the same wheels."""
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    for commit in (COMMIT, ANOTHER):
        wheels = [
            make_wheel(tmp_path / "wheels" / commit, "vllm", VERSION, f"cp38-abi3-manylinux_2_31_{machine}", ("serve",))
            for machine in ("x86_64", "aarch64")
        ]
        make_commit_index(tmp_path / "wheels" / commit, wheels)
    with serving(tmp_path / "wheels") as server:
        yield server


def find(tmp_path: Path, served: Served, commit: str, wants: PythonRequirements = WANTS) -> CommitWheel:
    index = f"{served.url}/COMMIT/cu130"
    cache = tmp_path / "cache"
    return wheels.find_commit_wheel(cache, "vllm", index, commit, wants, "linux/arm64", UserSettings())


def test_it_is_the_platforms_own_with_its_hash_and_no_other_is_fetched(tmp_path: Path, served: Served) -> None:
    found = find(tmp_path, served, COMMIT)
    (wheel,) = (tmp_path / "wheels" / COMMIT).glob("*aarch64.whl")
    assert (found.version, found.sha256) == (VERSION, sha256(wheel))
    assert found.address.startswith(f"{served.url}/{COMMIT}/vllm-0.11.2.dev363")
    assert found.line("vllm") == f"vllm @ {found.address} \\\n    --hash=sha256:{sha256(wheel)}\n"
    assert sum(size >= wheel.stat().st_size for size in served.sent) == 1
    served.sent.clear()
    assert find(tmp_path, served, COMMIT) == found
    assert served.sent == []


def test_a_commit_without_a_wheel_says_which_and_for_what(tmp_path: Path, served: Served) -> None:
    with pytest.raises(
        SourceError, match=rf"{BARE}/cu130 has no wheel of vllm for linux/arm64, Python 3.12: vllm was not found[\w ]+$"
    ):
        find(tmp_path, served, BARE)
    older = PythonRequirements("3.12", "2.17", ())
    with pytest.raises(SourceError, match="has no wheel of vllm for linux/arm64, Python 3.12: .*platform"):
        find(tmp_path, served, COMMIT, older)
    with pytest.raises(SourceError, match=f"{ANOTHER}/cu130 has the wheel of another commit, {VERSION[:10]}"):
        find(tmp_path, served, ANOTHER)


@pytest.mark.parametrize("name", ["", "odd'name"])
def test_an_address_that_no_build_can_fetch_is_refused(tmp_path: Path, served: Served, name: str) -> None:
    folder = tmp_path / "wheels" / BARE / name
    (wheel,) = (tmp_path / "wheels" / COMMIT).glob("*aarch64.whl")
    address = f"{served.url}/{BARE}/{name}/{wheel.name}" if name else wheel.as_uri()
    page = folder / "cu130/vllm/index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<!DOCTYPE html><html><body><a href="{address}">{wheel.name}</a></body></html>', encoding="utf-8")
    (folder / wheel.name).write_bytes(wheel.read_bytes())
    index = f"{served.url}/COMMIT/{name}/cu130" if name else f"{folder.parent.as_uri()}/COMMIT/cu130"
    with pytest.raises(SourceError, match="a build cannot fetch"):
        wheels.find_commit_wheel(tmp_path / "cache", "vllm", index, BARE, WANTS, "linux/arm64", UserSettings())


@pytest.mark.parametrize(
    ("version", "digits"),
    [
        (VERSION, "e2f56c309"),
        ("0.32.1.dev7+gabcdef0", "abcdef0"),
        ("0.32.1.dev7+cpu.gabcdef0.d20261101", "abcdef0"),
        ("0.32.0", ""),
        ("0.32.0+cu130", ""),
    ],
)
def test_a_version_names_its_commit_unless_it_is_a_release(version: str, digits: str) -> None:
    assert wheels.named(version) == digits


def test_the_template_of_an_address_has_the_commit_that_the_version_names() -> None:
    own = f"https://wheels.vllm.ai/{COMMIT}/cu130"
    text = f"install --default-index https://example.org/{ANOTHER}/x\ninstall --default-index '{own}' -r x"
    assert wheels.template(text, VERSION) == "https://wheels.vllm.ai/COMMIT/cu130"
    assert wheels.template(text, "0.32.0") == ""
    assert wheels.template(text.replace(COMMIT, "nightly"), VERSION) == ""

"""The cache file: an error in it never stops anything."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from builder.engine import images

if TYPE_CHECKING:
    from pathlib import Path


def test_sections_live_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "state" / "engine.json"
    assert images.load_cache(path) == {}
    images.store_cache(path, "tags", {"a": "b"})
    images.store_cache(path, "fingerprints", {"c": "d"})
    images.store_cache(path, "tags", {"e": "f"})
    assert images.load_cache(path) == {"tags": {"e": "f"}, "fingerprints": {"c": "d"}}
    assert [child.name for child in path.parent.iterdir()] == ["engine.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"version": 2, "tags": {"a": "b"}}',
        b'{"tags": {}}',
        b'{"version": 1, "tags": 7}',
    ],
)
def test_a_damaged_file_is_empty_and_is_written_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "engine.json"
    path.write_bytes(content)
    assert images.load_cache(path) == {}
    images.store_cache(path, "tags", {"a": "b"})
    assert images.load_cache(path) == {"tags": {"a": "b"}}


def test_a_pipe_or_a_device_in_its_place_is_no_cache(tmp_path: Path) -> None:
    path = tmp_path / "engine.json"
    os.mkfifo(path)
    assert images.load_cache(path) == {}
    path.unlink()
    path.symlink_to("/dev/zero")
    assert images.load_cache(path) == {}
    images.store_cache(path, "tags", {"a": "b"})
    assert images.load_cache(path) == {"tags": {"a": "b"}}


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    images.store_cache(tmp_path / "file" / "engine.json", "tags", {"a": "b"})
    assert images.load_cache(tmp_path / "file" / "engine.json") == {}


# Image references taken apart.


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a:1", ("a", "1")),
        ("a", ("a", "latest")),
        ("h:5000/a", ("h:5000/a", "latest")),
        ("h:5000/a/b:2", ("h:5000/a/b", "2")),
        ("h:5000/a@sha256:b", ("h:5000/a", "sha256:b")),
        ("a:1@sha256:b", ("a", "sha256:b")),
    ],
)
def test_tags(name: str, parts: tuple[str, str]) -> None:
    assert images.split_tag(name) == parts


@pytest.mark.parametrize(
    ("name", "repository"),
    [
        ("h:5000/a/b:2", "h:5000/a/b"),
        (f"h:5000/a@sha256:{0:064x}", "h:5000/a"),
        (f"a:1@sha256:{0:064x}", "a"),
    ],
)
def test_repositories(name: str, repository: str) -> None:
    assert images.repository(name) == repository


@pytest.mark.parametrize(
    ("repository", "name"),
    [
        ("a", "docker.io/library/a"),
        ("u/a", "docker.io/u/a"),
        ("h:5000/a", "h:5000/a"),
        ("h.example/a", "h.example/a"),
        ("localhost/a", "localhost/a"),
    ],
)
def test_the_registry_of_a_repository(repository: str, name: str) -> None:
    assert images.with_registry(repository) == name

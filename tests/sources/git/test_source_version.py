"""Versions from tags, as setuptools-scm makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.sources.git import ref_resolution, source_version
from tests.sources.git_server import make_repository

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("version", "following"),
    [
        ("0.19.1", "0.19.2"),
        ("0.19", "0.20"),
        ("0.19.1rc0", "0.19.1rc1"),
        ("0.6.7.post1", "0.6.7.post2"),
        ("1.0.dev3", "1.0"),
        ("0.9.9", "0.9.10"),
        ("1.2+cu130", "1.3"),
    ],
)
def test_the_next_version_is_guessed(version: str, following: str) -> None:
    assert source_version.next_version(version) == following


@pytest.mark.parametrize(
    ("tags", "version"),
    [
        (("v0.19.2rc0",), "0.19.2rc1.dev2+g"),
        (("v0.6.7", "nightly-v0.9.0-20260401"), "0.6.8.dev2+g"),
        (("v1.0-legacy-branch", "v1.x"), "0.0.0.dev3+g"),
        (("v2.0rc1", "v2.0", "v2.0rc2"), "2.1.dev2+g"),
        (("0.5.0",), "0.5.1.dev2+g"),
        (("release/v3",), "0.0.0.dev3+g"),
        ((), "0.0.0.dev3+g"),
    ],
)
def test_a_version_is_made_of_the_nearest_tags(tmp_path: Path, tags: tuple[str, ...], version: str) -> None:
    upstream = make_repository(tmp_path / "upstream.git")
    first = upstream.commit("refs/heads/main", "One", {"a": "1"})
    for tag in tags:
        upstream.git("tag", tag, first)
    upstream.commit("refs/heads/main", "Two", {"a": "2"})
    commit = upstream.commit("refs/heads/main", "Three", {"a": "3"})
    assert ref_resolution.resolve(tmp_path / "mirrors", str(upstream.path), "main").version == version + commit[:7]

"""Image references taken apart."""

from __future__ import annotations

import pytest

from builder.engine import images


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a:1", ("a", "1")),
        ("a", ("a", "latest")),
        ("h:5000/a", ("h:5000/a", "latest")),
        ("h:5000/a/b:2", ("h:5000/a/b", "2")),
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

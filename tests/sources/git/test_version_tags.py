"""The newest release of a repository, by its tags."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.sources import vllm_versions

if TYPE_CHECKING:
    from pathlib import Path


IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@example.org")


def repository(folder: Path, *tags: str) -> str:
    def git(*arguments: str) -> None:
        subprocess.run(["git", *IDENTITY, *arguments], cwd=folder, check=True, capture_output=True)

    folder.mkdir()
    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "--message=one")
    for tag in tags:
        git("tag", "--annotate", "--message=t", tag)
    return f"file://{folder}"


def test_the_highest_version_is_the_newest(tmp_path: Path) -> None:
    url = repository(tmp_path / "a", "v0.9.0", "v0.10.1", "v0.11.0rc1", "nightly")
    assert vllm_versions.newest_version_tag(url) == "v0.10.1"


def test_a_repository_may_have_none(tmp_path: Path) -> None:
    assert vllm_versions.newest_version_tag(repository(tmp_path / "a", "nightly")) == ""


def test_one_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        vllm_versions.newest_version_tag(f"file://{tmp_path}/none")

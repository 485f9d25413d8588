"""The newest release of some age, among the tags of a real server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.sources import vllm_versions
from tests.sources.git_server import Repository, Vllm, make_repository

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.slow

# The clock of the served repositories: each commit is a minute after the one before.
START = datetime.fromtimestamp(1_770_000_000, UTC)
DAY = 24 * 60


def tag(repository: Repository, name: str, day: int, *, annotated: bool = True) -> None:
    repository.minutes = day * DAY
    commit = repository.commit("refs/heads/releases", name, {"VERSION": name})
    repository.git("tag", *(["--annotate", "--message=x"] if annotated else []), name, commit)


def choose(vllm: Vllm, days: int, day: float) -> vllm_versions.ReleaseChoice:
    return vllm_versions.choose_release(vllm.mirrors, vllm.url, days, START + timedelta(days=day), vllm.messages.append)


def test_the_newest_that_is_old_enough_is_taken_and_younger_ones_are_named(vllm: Vllm) -> None:
    repository = vllm.history.repository
    tag(repository, "v0.20.0", 10)
    tag(repository, "v0.21.0rc1", 11)
    tag(repository, "v0.21.0", 20, annotated=False)
    tag(repository, "v0.22.0", 22)
    tag(repository, "nightly-v0.23.0-20260401", 5)
    choice = choose(vllm, 7, 23)
    assert choice.taken.tag == "v0.20.0"
    assert [release.tag for release in choice.too_young] == ["v0.22.0", "v0.21.0"]
    assert choose(vllm, 7, 28).taken.tag == "v0.21.0"
    assert choose(vllm, 0, 23).taken.tag == "v0.22.0"


def test_the_highest_version_counts_not_the_last_day(vllm: Vllm) -> None:
    tag(vllm.history.repository, "v0.21.0", 10)
    tag(vllm.history.repository, "v0.20.1", 12)
    assert choose(vllm, 7, 30) == vllm_versions.ReleaseChoice(choose(vllm, 7, 30).taken, ())
    assert choose(vllm, 7, 30).taken.tag == "v0.21.0"


def test_a_tag_made_later_than_its_commit_is_as_old_as_the_tag(vllm: Vllm) -> None:
    repository = vllm.history.repository
    repository.minutes = 20 * DAY
    repository.git("tag", "--annotate", "--message=late", "v0.20.0", vllm.history.main)
    assert choose(vllm, 7, 23).taken.tag == "v0.19.1"
    assert choose(vllm, 7, 28).taken.tag == "v0.20.0"


def test_a_release_that_appears_later_is_seen(vllm: Vllm) -> None:
    assert choose(vllm, 0, 1).taken.tag == "v0.19.1"
    tag(vllm.history.repository, "v0.20.0", 10)
    assert choose(vllm, 0, 11).taken.tag == "v0.20.0"


def test_where_none_is_old_enough_the_hint_names_one(vllm: Vllm) -> None:
    with pytest.raises(SourceError, match="no release of .* is 7 days old; there is v0.19.1, v0.19.0") as caught:
        choose(vllm, 7, 1)
    assert "`=v0.19.1`" in caught.value.hint


def test_a_repository_without_releases_says_so(vllm: Vllm, tmp_path: Path) -> None:
    make_repository(tmp_path / "served/empty.git").commit("refs/heads/main", "Start", {"a": "b"})
    with pytest.raises(SourceError, match="has no tag that is a release"):
        vllm_versions.choose_release(vllm.mirrors, f"{vllm.server.url}/empty.git", 7, START, vllm.messages.append)

"""The facts of a commit, from a mirror."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.sources import mirror, vllm_versions
from tests.sources.git_server import INC, Repository, Vllm, make_repository, served_vllm

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_the_facts_of_a_commit_are_those_of_a_history(tmp_path: Path) -> None:
    with served_vllm(tmp_path) as vllm:
        commit = vllm.history.main
        facts = vllm_versions.commit_facts(vllm.source, commit)
        assert (facts.title, facts.files) == ("inc.py changes again", (INC,))
        assert vllm_versions.commit_facts(vllm.source, commit, within=(commit,)) == facts
        with pytest.raises(SourceError, match="is not in the history of"):
            vllm_versions.commit_facts(vllm.source, commit, within=(vllm.history.v0_19_0,))


# The main line between two commits, which are told by a tag, by their digits, or by the first of those.


def between(vllm: Vllm, old: str, new: str) -> tuple[str, ...]:
    return vllm_versions.main_line_between(vllm.source, old, new)


@pytest.mark.slow
def test_the_commits_between_two_releases_are_listed_in_their_order(vllm: Vllm) -> None:
    first, last = vllm.history.v0_19_0, vllm.history.main
    all_between = between(vllm, "v0.19.0", last)
    # The annotated tag is the commit, and no object of its own.
    assert all_between[0] == vllm.history.v0_19_1
    assert between(vllm, "v0.19.1", last) == all_between[1:]
    assert between(vllm, "v0.19.0", "v0.19.1") == ()
    assert len(all_between) == int(vllm.git("rev-list", "--count", "--first-parent", f"{first}..{last}")) - 1


@pytest.mark.slow
def test_first_digits_are_enough_and_nothing_is_asked_twice(vllm: Vllm) -> None:
    last = vllm.history.main
    by_digits = between(vllm, vllm.history.v0_19_1[:9], last[:9])
    assert by_digits == between(vllm, vllm.history.v0_19_1, last)
    assert vllm_versions.commit_of(vllm.source, last[:7]) == last
    assert vllm.requests_of(lambda: between(vllm, by_digits[0], last[:9])) == 0


@pytest.mark.slow
def test_of_a_merge_the_merge_alone_is_on_the_main_line(vllm: Vllm) -> None:
    own, tip = vllm.history.repository, vllm.history.main
    side = own.git("commit-tree", f"{tip}^{{tree}}", "-p", tip, "-m", "on a branch")
    merge = own.git("commit-tree", f"{tip}^{{tree}}", "-p", tip, "-p", side, "-m", "Merge")
    after = own.git("commit-tree", f"{tip}^{{tree}}", "-p", merge, "-m", "after it")
    own.git("update-ref", "refs/heads/main", after)
    assert between(vllm, tip, after) == (merge,)
    assert between(vllm, tip, merge) == ()


@pytest.mark.slow
def test_what_is_not_there_is_said(vllm: Vllm) -> None:
    with pytest.raises(SourceError, match=r"no branch or tag .refs/tags/v0\.99\.0"):
        between(vllm, "v0.99.0", vllm.history.main)
    with pytest.raises(SourceError, match="no commit that begins with 0123456"):
        between(vllm, "0123456", vllm.history.main)


# The newest release of some age, among the tags of a real server.

# The clock of the served repositories: each commit is a minute after the one before.
START = datetime.fromtimestamp(1_770_000_000, UTC)
DAY = 24 * 60


def tag(repository: Repository, name: str, day: int, *, annotated: bool = True) -> None:
    repository.minutes = day * DAY
    commit = repository.commit("refs/heads/releases", name, {"VERSION": name})
    repository.git("tag", *(["--annotate", "--message=x"] if annotated else []), name, commit)


def choose(vllm: Vllm, days: int, day: float) -> vllm_versions.ReleaseChoice:
    source = mirror.locate(vllm.mirrors, vllm.url, vllm.messages.append)
    return vllm_versions.choose_release(source, days, START + timedelta(days=day))


@pytest.mark.slow
def test_the_newest_that_is_old_enough_is_taken_and_younger_ones_are_named(vllm: Vllm) -> None:
    repository = vllm.history.repository
    tag(repository, "v0.20.0", 10)
    tag(repository, "v0.21.0rc1", 11)
    tag(repository, "v0.21.0", 20, annotated=False)
    tag(repository, "v0.22.0", 22)
    tag(repository, "nightly-v0.23.0-20260401", 5)
    repository.git("tag", "z-a-file", f"{vllm.history.main}:README.md")  # such a tag has no date
    choice = choose(vllm, 7, 23)
    assert choice.taken.tag == "v0.20.0"
    assert [release.tag for release in choice.too_young] == ["v0.22.0", "v0.21.0"]
    assert choose(vllm, 7, 28).taken.tag == "v0.21.0"
    assert choose(vllm, 0, 23).taken.tag == "v0.22.0"


@pytest.mark.slow
def test_the_highest_version_counts_not_the_last_day(vllm: Vllm) -> None:
    tag(vllm.history.repository, "v0.21.0", 10)
    tag(vllm.history.repository, "v0.20.1", 12)
    assert choose(vllm, 7, 30) == vllm_versions.ReleaseChoice(choose(vllm, 7, 30).taken, ())
    assert choose(vllm, 7, 30).taken.tag == "v0.21.0"


@pytest.mark.slow
def test_a_tag_made_later_than_its_commit_is_as_old_as_the_tag(vllm: Vllm) -> None:
    repository = vllm.history.repository
    repository.minutes = 20 * DAY
    repository.git("tag", "--annotate", "--message=late", "v0.20.0", vllm.history.main)
    assert choose(vllm, 7, 23).taken.tag == "v0.19.1"
    assert choose(vllm, 7, 28).taken.tag == "v0.20.0"


@pytest.mark.slow
def test_a_release_that_appears_later_is_seen(vllm: Vllm) -> None:
    assert choose(vllm, 0, 1).taken.tag == "v0.19.1"
    tag(vllm.history.repository, "v0.20.0", 10)
    assert choose(vllm, 0, 11).taken.tag == "v0.20.0"


@pytest.mark.slow
def test_where_none_is_old_enough_the_hint_names_one(vllm: Vllm) -> None:
    with pytest.raises(SourceError, match="is at least 7 days old; the newest are v0.19.1, v0.19.0") as caught:
        choose(vllm, 7, 1)
    assert "such as v0.19.1, instead of `release`" in caught.value.hint


@pytest.mark.slow
def test_a_repository_without_releases_says_so(vllm: Vllm, tmp_path: Path) -> None:
    make_repository(tmp_path / "served/empty.git").commit("refs/heads/main", "Start", {"a": "b"})
    empty = mirror.locate(vllm.mirrors, f"{vllm.server.url}/empty.git", vllm.messages.append)
    with pytest.raises(SourceError, match="has no release tag"):
        vllm_versions.choose_release(empty, 7, START)


# The newest release of a repository, by its tags.

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

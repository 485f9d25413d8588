"""The main line between two commits, which are told by a tag, by their digits, or by the first of those."""

from __future__ import annotations

import pytest

from builder.base.errors import SourceError
from builder.sources import vllm_versions
from tests.sources.git_server import Vllm

pytestmark = pytest.mark.slow


def between(vllm: Vllm, old: str, new: str) -> tuple[str, ...]:
    return vllm_versions.main_line_between(vllm.mirrors, vllm.url, old, new)


def test_the_commits_between_two_releases_are_listed_in_their_order(vllm: Vllm) -> None:
    first, last = vllm.history.v0_19_0, vllm.history.main
    all_between = between(vllm, "v0.19.0", last)
    # The annotated tag is the commit, and no object of its own.
    assert all_between[0] == vllm.history.v0_19_1
    assert between(vllm, "v0.19.1", last) == all_between[1:]
    assert between(vllm, "v0.19.0", "v0.19.1") == ()
    assert len(all_between) == int(vllm.git("rev-list", "--count", "--first-parent", f"{first}..{last}")) - 1


def test_first_digits_are_enough_and_nothing_is_asked_twice(vllm: Vllm) -> None:
    last = vllm.history.main
    by_digits = between(vllm, vllm.history.v0_19_1[:9], last[:9])
    assert by_digits == between(vllm, vllm.history.v0_19_1, last)
    assert vllm_versions.commit_of(vllm.mirrors, vllm.url, last[:7]) == last
    assert vllm.requests_of(lambda: between(vllm, by_digits[0], last[:9])) == 0


def test_of_a_merge_the_merge_alone_is_on_the_main_line(vllm: Vllm) -> None:
    own, tip = vllm.history.repository, vllm.history.main
    side = own.git("commit-tree", f"{tip}^{{tree}}", "-p", tip, "-m", "on a branch")
    merge = own.git("commit-tree", f"{tip}^{{tree}}", "-p", tip, "-p", side, "-m", "Merge")
    after = own.git("commit-tree", f"{tip}^{{tree}}", "-p", merge, "-m", "after it")
    own.git("update-ref", "refs/heads/main", after)
    assert between(vllm, tip, after) == (merge,)
    assert between(vllm, tip, merge) == ()


def test_what_is_not_there_is_said(vllm: Vllm) -> None:
    with pytest.raises(SourceError, match=r"no branch or tag .refs/tags/v0\.99\.0"):
        between(vllm, "v0.99.0", vllm.history.main)
    with pytest.raises(SourceError, match="no commit that begins with 0123456"):
        between(vllm, "0123456", vllm.history.main)

"""The own commits of a pull request: which branch it left, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.sources import mirror, pulls
from builder.sources.git import MissingError
from builder.sources.pulls import OwnCommits, RequestedPull
from tests.sources.git_server import Repository, make_repository, serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from builder.sources.git import GitRepository


pytestmark = pytest.mark.slow

MAIN = "refs/heads/main"
HEAD = "refs/pull/7/head"


@dataclass
class Upstream:
    """A repository with a release and a main that went on from it."""

    repository: Repository
    url: str
    mirrors: Path
    release: str
    main: str

    def commit(self, ref: str, files: Mapping[str, str | None], *parents: str) -> str:
        """Commits ``files`` on top of the first of ``parents``; the others are merged."""
        own = self.repository
        commit = own.commit(ref, "A commit", files, parent=parents[0])
        if parents[1:]:
            arguments = [argument for parent in parents for argument in ("-p", parent)]
            commit = own.git("commit-tree", f"{commit}^{{tree}}", *arguments, "-m", "A merge")
            own.git("update-ref", ref, commit)
        return commit

    def own(self, base: str = "", commit: str = "") -> OwnCommits:
        """The own commits of request 7, for the release."""
        pull = RequestedPull(7, base)

        def read(repository: GitRepository) -> OwnCommits:
            mirror.ensure_commit(repository, commit or self.release)
            head = pulls.fetch_pull(repository, pull)
            return pulls.own_commits(repository, pull, head, commit or self.release)

        return mirror.with_mirror(self.mirrors, self.url, read)

    def refused(self, base: str = "") -> str:
        with pytest.raises(SourceError) as caught:
            self.own(base)
        assert caught.value.hint
        return caught.value.message


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    own = make_repository(tmp_path / "served" / "vllm.git")
    release = own.commit(MAIN, "Release", {"serve.py": "1\n", "drafter.py": "1\n"})
    main = own.commit(MAIN, "Upstream goes on", {"serve.py": "2\n"})
    with serve(tmp_path / "served") as server:
        yield Upstream(own, f"{server.url}/vllm.git", tmp_path / "mirrors", release, main)


def test_it_begins_where_it_left_the_default_branch(upstream: Upstream) -> None:
    head = upstream.commit(HEAD, {"drafter.py": "7\n"}, upstream.main)
    upstream.commit(MAIN, {"serve.py": "3\n"}, upstream.main)
    assert upstream.own() == OwnCommits(upstream.main, head)


def test_the_default_branch_may_have_any_name(upstream: Upstream) -> None:
    head = upstream.commit(HEAD, {"drafter.py": "7\n"}, upstream.main)
    upstream.repository.git("update-ref", "refs/heads/trunk", upstream.main)
    upstream.repository.git("update-ref", MAIN, upstream.release)
    upstream.repository.git("symbolic-ref", "HEAD", "refs/heads/trunk")
    assert upstream.own() == OwnCommits(upstream.main, head)
    upstream.repository.git("update-ref", "-d", "refs/heads/trunk")
    assert upstream.refused() == f"{upstream.url} has no default branch"
    upstream.repository.git("update-ref", MAIN, upstream.main)
    assert upstream.own(base="main") == OwnCommits(upstream.main, head)


def test_what_it_took_over_from_its_branch_meanwhile_is_not_its_own(upstream: Upstream) -> None:
    first = upstream.commit(HEAD, {"drafter.py": "7\n"}, upstream.release)
    head = upstream.commit(HEAD, {"serve.py": "2\n"}, first, upstream.main)
    assert upstream.own() == OwnCommits(upstream.main, head)


def test_one_that_was_opened_for_another_branch_names_it(upstream: Upstream) -> None:
    dev = upstream.commit("refs/heads/dev", {"dev.py": "1\n"}, upstream.main)
    head = upstream.commit(HEAD, {"drafter.py": "7\n"}, dev)
    assert upstream.own("dev") == OwnCommits(dev, head)
    assert upstream.own("refs/heads/dev") == OwnCommits(dev, head)
    upstream.repository.git("tag", "--annotate", "--message=dev", "dev-1", dev)
    assert upstream.own("dev-1") == OwnCommits(dev, head)
    upstream.repository.git("update-ref", "-d", "refs/heads/dev")
    upstream.repository.git("tag", "-d", "dev-1")
    with pytest.raises(MissingError, match="has no branch `dev`, the `base` of pull request 7"):
        upstream.own("dev")
    assert upstream.own(dev) == OwnCommits(dev, head)


def test_the_merge_that_github_keeps_tells_the_branch_even_after_it_is_deleted(upstream: Upstream) -> None:
    dev = upstream.commit("refs/heads/dev", {"dev.py": "1\n"}, upstream.main)
    head = upstream.commit(HEAD, {"drafter.py": "7\n"}, dev)
    assert upstream.own() == OwnCommits(upstream.main, head)  # nothing tells that dev.py is not its own
    later = upstream.commit("refs/heads/dev", {"dev.py": "2\n"}, dev)
    upstream.commit("refs/pull/7/merge", {"drafter.py": "7\n"}, later, head)
    upstream.repository.git("update-ref", "-d", "refs/heads/dev")
    assert upstream.own() == OwnCommits(dev, head)
    assert upstream.refused("main") == (
        "pull request 7: against main its diff holds a file that it does not touch itself: dev.py"
    )
    head = upstream.commit(HEAD, {"drafter.py": "8\n"}, dev)  # pushed since: that merge is of another head
    assert upstream.own() == OwnCommits(upstream.main, head)


def test_a_base_that_brings_files_of_upstream_along_is_refused_with_their_names(upstream: Upstream) -> None:
    upstream.repository.git("update-ref", "refs/heads/release", upstream.release)
    many = {f"file{number}.py": "1\n" for number in range(7)}
    later = upstream.commit(MAIN, many, upstream.main)
    upstream.commit(HEAD, {"drafter.py": "7\n"}, later)
    assert upstream.refused("release") == (
        "pull request 7: against release its diff holds 8 files that it does not touch itself: "
        "file0.py, file1.py, file2.py, file3.py, file4.py and 3 more"
    )


def test_of_several_merge_bases_that_is_taken_from_which_only_its_own_differs(upstream: Upstream) -> None:
    """Main took an early state of the request, and the request the main before that: a criss-cross."""
    first = upstream.commit(HEAD, {"drafter.py": "7\n"}, upstream.release)
    head = upstream.commit(HEAD, {"serve.py": "2\n"}, first, upstream.main)
    upstream.commit(MAIN, {"drafter.py": "7\n"}, upstream.main, first)
    head = upstream.commit(HEAD, {"drafter.py": "8\n"}, head)
    assert upstream.own() == OwnCommits(upstream.main, head)


def test_one_that_was_merged_begins_where_its_branch_took_it(upstream: Upstream) -> None:
    first = upstream.commit(HEAD, {"drafter.py": "7\n"}, upstream.main)
    head = upstream.commit(HEAD, {"drafter.py": "8\n"}, first)
    other = upstream.commit(MAIN, {"serve.py": "3\n"}, upstream.main)
    merge = upstream.commit(MAIN, {"drafter.py": "8\n"}, other, head)
    for number in range(4):
        merge = upstream.commit(MAIN, {"serve.py": f"later {number}\n"}, merge)
    assert upstream.own() == OwnCommits(upstream.main, head)


def test_one_that_main_went_on_from_is_clear_only_if_it_is_one_commit(upstream: Upstream) -> None:
    head = upstream.commit(HEAD, {"drafter.py": "7\n"}, upstream.main)
    upstream.commit(MAIN, {"serve.py": "3\n"}, head)
    assert upstream.own(commit=upstream.main) == OwnCommits(upstream.main, head)
    message = upstream.refused()
    assert message.startswith("pull request 7 was merged into its branch without a merge commit")
    assert message.endswith("all of them touch drafter.py, serve.py")
    assert upstream.own(upstream.main) == OwnCommits(upstream.main, head)


def test_a_history_that_is_not_shared_is_named(upstream: Upstream) -> None:
    upstream.repository.commit(HEAD, "From nowhere", {"a": "1\n"})
    assert upstream.refused() == f"pull request 7 of {upstream.url} shares no history with the default branch"

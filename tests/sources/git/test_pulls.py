"""Patches tried on a pinned commit: one after the other."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.definitions.source_patches import SourcePatch
from builder.sources import mirror, pulls
from builder.sources import patches as patches_of_pull_merge
from builder.sources.git import Address, GitRepository, MissingError
from builder.sources.pulls import OwnCommits, Vendored
from tests.sources.git_server import DRAFTER, INC, Repository, Vllm, lines, make_repository, serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


pytestmark = pytest.mark.slow


def patches(vllm: Vllm, *numbers: int) -> list[Vendored]:
    """The requests as they are: for the commits that they stand on."""
    return [(SourcePatch(str(number)), _patch(vllm, number)) for number in numbers]


def _patch(vllm: Vllm, number: int) -> bytes:
    start = vllm.history.repository.git("merge-base", "refs/heads/main", f"refs/pull/{number}/head")
    return pulls.vendor(vllm.source, SourcePatch(str(number)), start)[1]


def problems(vllm: Vllm, wanted: list[Vendored]) -> list[str]:
    """The problems that are reported, one a line."""
    with pytest.raises(SourceError) as caught:
        pulls.check_patches(vllm.source, vllm.history.main, wanted)
    assert caught.value.exit_code == 6
    assert caught.value.hint
    return caught.value.message.splitlines()


def add(vllm: Vllm, number: int, files: dict[str, str | bytes | None]) -> None:
    vllm.history.repository.commit(f"refs/pull/{number}/head", f"Number {number}", files, parent=vllm.history.main)


def test_patches_that_apply_one_after_the_other_are_fine_offline_too(vllm: Vllm) -> None:
    wanted = patches(vllm, 40898, 40004)
    before = vllm.git("count-objects", "-v")
    pulls.check_patches(vllm.source, vllm.history.main, wanted)
    shutil.rmtree(vllm.server.root)
    pulls.check_patches(vllm.source, vllm.history.main, [*reversed(wanted)])
    pulls.check_patches(vllm.source, vllm.history.main, [])
    assert "count: 0" in before
    assert "count: 0" in vllm.git("count-objects", "-v")  # a dry run adds nothing to the mirror


def test_one_that_does_not_apply_is_named_with_file_and_hunk(vllm: Vllm) -> None:
    add(vllm, 1, {INC: lines(1, 40, line5="FIVE", line29="29", line30="thirty")})
    ours = vllm.history.repository
    on_old = {INC: lines(1, 40, line1="one", line30="thirty, by 50000")}
    ours.commit("refs/pull/50000/head", "Of another time", on_old, parent=vllm.history.v0_19_1)
    (problem,) = problems(vllm, patches(vllm, 1, 50000))
    where = f"{INC}, hunk 2 of 2 (@@ -27,7 +27,7 @@ line 26)"
    assert problem == f"pull request 50000 does not apply to {vllm.history.main[:7]} after pull request 1: {where}"


@pytest.mark.long
def test_one_that_conflicts_with_another_is_named_with_those_before_it(vllm: Vllm) -> None:
    (problem,) = problems(vllm, patches(vllm, 40898, 40004, 40727))
    assert problem.startswith(
        f"pull request 40727 does not apply to {vllm.history.main[:7]} after pull request 40898, pull request 40004:"
        f" {DRAFTER}, hunk 1 of 1 (@@ -7,8 +7,8 @@"
    )
    (problem,) = problems(vllm, patches(vllm, 40727, 40898))
    assert problem.startswith(
        f"pull request 40898 does not apply to {vllm.history.main[:7]} after pull request 40727: {DRAFTER},"
        " hunk 1 of 2 (@@ -7,7 +7,7 @@"
    )


def test_one_that_conflicts_only_with_two_together_is_named_with_them(vllm: Vllm) -> None:
    twice = lines(1, 9) + lines(1, 9)
    vllm.history.main = vllm.history.repository.commit("refs/heads/main", "Twice the same", {"twice.txt": twice})
    add(vllm, 1, {"twice.txt": lines(1, 9, line5="first") + lines(1, 9)})
    add(vllm, 2, {"twice.txt": lines(1, 9) + lines(1, 9, line5="second")})
    body = " line 2\n line 3\n line 4\n-line 5\n+FIVE\n line 6\n line 7\n line 8\n"  # git finds it in either place
    patch = (SourcePatch("x"), f"--- a/twice.txt\n+++ b/twice.txt\n@@ -2,7 +2,7 @@\n{body}".encode())
    first, second = patches(vllm, 1, 2)
    pulls.check_patches(vllm.source, vllm.history.main, [first, patch])
    pulls.check_patches(vllm.source, vllm.history.main, [second, patch])
    (problem,) = problems(vllm, [first, second, patch])
    assert problem.startswith(
        f"patch x does not apply to {vllm.history.main[:7]} after pull request 1, pull request 2: twice.txt,"
        " hunk 1 of 1 (@@ -2,7"
    )


def test_a_patch_that_leads_out_of_the_source_is_refused(vllm: Vllm) -> None:
    outside = b"--- a/../../x\n+++ b/../../x\n@@ -1 +1 @@\n-a\n+b\n"
    (problem,) = problems(vllm, [(SourcePatch("a"), outside)])
    assert "../../x" in problem
    assert not vllm.messages


@pytest.mark.long
def test_all_problems_are_found_at_once(vllm: Vllm) -> None:
    reported = problems(vllm, patches(vllm, 40003, 40898, 40727, 40002))
    assert [line.split(" ")[2] for line in reported] == ["40003", "40727", "40002"]


def test_files_that_are_there_or_are_not_are_named(vllm: Vllm) -> None:
    there = "--- /dev/null\n+++ b/README.md\n@@ -0,0 +1 @@\n+new\n"
    gone = "--- a/gone.py\n+++ b/gone.py\n@@ -1 +1 @@\n-old\n+new\n"
    renamed = "diff --git a/VERSION b/V\nsimilarity index 100%\nrename from VERSION\nrename to V\n"
    short = vllm.history.main[:7]
    assert problems(vllm, [(SourcePatch("a"), there.encode())]) == [
        f"patch a does not apply to {short}: README.md already exists"
    ]
    assert problems(vllm, [(SourcePatch("b"), gone.encode())]) == [
        f"patch b does not apply to {short}: gone.py does not exist"
    ]
    pulls.check_patches(vllm.source, vllm.history.main, [(SourcePatch("c"), renamed.encode())])


def test_a_patch_file_is_applied_with_what_it_strips(vllm: Vllm) -> None:
    diff = b"--- README.md\n+++ README.md\n@@ -1 +1 @@\n-vLLM\n+ours\n"
    pulls.check_patches(vllm.source, vllm.history.main, [(SourcePatch("fixes/a.patch", strip=0), diff)])
    (problem,) = problems(vllm, [(SourcePatch("fixes/a.patch", strip=0), diff.replace(b"-vLLM", b"-gone"))])
    where = "README.md, hunk 1 of 1 (@@ -1 +1 @@)"
    assert problem == f"patch fixes/a.patch does not apply to {vllm.history.main[:7]}: {where}"


@pytest.mark.parametrize(
    "diff",
    [
        "--- /etc/passwd\n+++ /etc/passwd\n@@ -1 +1 @@\n-a\n+b\n",
        "--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b\n",
        "--- a/.git/config\n+++ b/.git/config\n@@ -1 +1 @@\n-a\n+b\n",
        "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n",
        "diff --git a/m b/m\nnew file mode 160000\n--- /dev/null\n+++ b/m\n@@ -0,0 +1 @@\n+Subproject commit a\n",
    ],
)
def test_a_hostile_patch_file_is_refused_before_it_is_tried(vllm: Vllm, diff: str) -> None:
    (problem,) = problems(vllm, [(SourcePatch("fixes/a.patch"), diff.encode())])
    assert problem.startswith(("patch fixes/a.patch changes a file outside", "patch fixes/a.patch creates a link or"))
    assert not vllm.messages


def test_a_request_of_a_fork_comes_with_what_only_the_fork_has(vllm: Vllm) -> None:
    fork = Repository(Path(shutil.copytree(vllm.history.repository.path, vllm.server.root / "fork.git")))
    only = fork.commit("refs/heads/main", "Only in the fork", {"vllm/fork.py": lines(1, 9)})
    head = fork.commit(
        "refs/pull/3/head", "Faster", {"vllm/fork.py": lines(1, 9, line2="2"), INC: lines(1, 3)}, parent=only
    )
    request = SourcePatch(f"{vllm.server.url}/fork.git/pull/3", base=vllm.history.main)
    pin, diff = pulls.vendor(vllm.source, request, vllm.history.main)
    assert (pin.name, pin.head, pin.sha256) == (request.name, head, hashlib.sha256(diff).hexdigest())
    assert b"+2\n" in diff
    pulls.check_patches(vllm.source, vllm.history.main, [(pin, diff)])
    # The pinned state is had again where the fork has gone on, and refused where the mirror and the fork lost it.
    fork.commit("refs/pull/3/head", "Faster still", {"vllm/fork.py": lines(1, 5)}, parent=head)
    others = mirror.locate(vllm.mirrors.with_name("others"), vllm.url)
    assert pulls.vendor(others, pin, vllm.history.main) == (pin, diff)
    with pytest.raises(MissingError, match="has no pull request 9"):
        pulls.vendor(vllm.source, SourcePatch(f"{vllm.server.url}/fork.git/pull/9"), vllm.history.main)


def test_a_request_of_another_project_is_told_from_one_of_a_fork(vllm: Vllm) -> None:
    other = make_repository(vllm.server.root / "other.git")
    start = other.commit("refs/heads/main", "Another start", {"README.md": "another\n"})
    other.commit("refs/pull/3/head", "A change", {"README.md": "changed\n"}, parent=start)
    request = SourcePatch(f"{vllm.server.url}/other.git/pull/3")
    with pytest.raises(SourceError, match="shares no history with .*it belongs to another project") as caught:
        pulls.vendor(vllm.source, request, vllm.history.main)
    assert "its forks" in caught.value.hint


@pytest.mark.parametrize("diff", [b"", b"no patch", b"--- a/README.md\n+++ b/README.md\n@@ -1,9 +1 @@\n-x\n"])
def test_what_is_no_patch_is_named(vllm: Vllm, diff: bytes) -> None:
    (problem,) = problems(vllm, [(SourcePatch("a"), diff)])
    assert problem.startswith("patch a is not a patch that git can read")


# The own commits of a pull request: which branch it left, and where.

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

    def own(self, base: str = "") -> OwnCommits:
        """The own commits of request 7, for the release."""
        pull = SourcePatch("7", base=base)

        @mirror.under_lock
        def read(repository: GitRepository) -> OwnCommits:
            mirror.ensure_commit(repository, self.release)
            head = pulls.fetch_pull(repository, pull)
            return pulls.own_commits(repository, pull, head)

        return read(mirror.locate(self.mirrors, self.url))

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


@pytest.mark.long
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
        "pull request 7: compared with main, its diff contains a file that its own commits do not change: dev.py"
    )
    head = upstream.commit(HEAD, {"drafter.py": "8\n"}, dev)  # pushed since: that merge is of another head
    assert upstream.own() == OwnCommits(upstream.main, head)


def test_a_base_that_brings_files_of_upstream_along_is_refused_with_their_names(upstream: Upstream) -> None:
    upstream.repository.git("update-ref", "refs/heads/release", upstream.release)
    many = {f"file{number}.py": "1\n" for number in range(7)}
    later = upstream.commit(MAIN, many, upstream.main)
    upstream.commit(HEAD, {"drafter.py": "7\n"}, later)
    assert upstream.refused("release") == (
        "pull request 7: compared with release, its diff contains 8 files that its own commits do not change: "
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


def test_one_that_main_went_on_from_needs_its_base(upstream: Upstream) -> None:
    head = upstream.commit(HEAD, {"drafter.py": "7\n"}, upstream.main)
    upstream.commit(MAIN, {"serve.py": "3\n"}, head)
    assert upstream.refused().startswith("pull request 7 was merged into its branch without a merge commit")
    assert upstream.own(upstream.main) == OwnCommits(upstream.main, head)


def test_a_history_that_is_not_shared_is_named(upstream: Upstream) -> None:
    upstream.repository.commit(HEAD, "From nowhere", {"a": "1\n"})
    assert upstream.refused() == f"pull request 7 of {upstream.url} shares no history with the default branch"


# Pull requests merged into the pinned commit: what only they change, three-way, and named where it does not go.

START: dict[str, str | bytes | None] = {
    "drafter.py": lines(1, 40),
    "serve.py": lines(1, 40),
    "logo.bin": bytes(range(256)),
}


@dataclass
class PullMergeUpstream:
    """A repository with a release and a main that went on from it."""

    repository: Repository
    url: str
    mirrors: Path
    release: str
    main: str
    messages: list[str] = field(default_factory=list)

    def request(self, number: int, files: Mapping[str, str | bytes | None], parent: str) -> str:
        return self.repository.commit(f"refs/pull/{number}/head", f"Number {number}", files, parent=parent)

    def vendor(self, number: int, commit: str = "", earlier: tuple[Vendored, ...] = (), base: str = "") -> bytes:
        """The patch of a request for the release, which applies after the ``earlier`` ones as it has to."""
        self.messages.clear()
        pull = SourcePatch(str(number), base=base)
        commit = commit or self.release
        diff = pulls.vendor(mirror.locate(self.mirrors, self.url, self.messages.append), pull, commit, earlier)[1]
        pulls.check_patches(mirror.locate(self.mirrors, self.url), commit, [*earlier, (pull, diff)])
        return diff

    def refused(self, number: int, commit: str = "", earlier: tuple[Vendored, ...] = (), base: str = "") -> str:
        with pytest.raises(SourceError) as caught:
            self.vendor(number, commit, earlier, base)
        assert caught.value.exit_code == 6
        assert caught.value.hint
        return caught.value.message

    def after(self, diff: bytes, path: str) -> str:
        """The text of a file of the release with ``diff`` applied to it."""
        (mirror,) = self.mirrors.glob("*.git")
        with patches_of_pull_merge.opened(GitRepository(mirror, Address(self.url))) as index:
            index.read(self.release)
            assert index.apply_error(diff) == ""
            return index.checked(["cat-file", "blob", f":{path}"]).output.decode()


@pytest.fixture
def pull_merge_upstream(tmp_path: Path) -> Iterator[PullMergeUpstream]:
    own = make_repository(tmp_path / "served" / "vllm.git")
    release = own.commit(MAIN, "Release", START)
    own.git("tag", "v0.21.0", release)
    own.commit(MAIN, "Upstream goes on", {"serve.py": lines(1, 40, line30="thirty"), "new.py": "new\n"})
    main = own.commit(MAIN, "And on", {"drafter.py": lines(1, 40, line35="thirty-five")})
    with serve(tmp_path / "served") as server:
        yield PullMergeUpstream(own, f"{server.url}/vllm.git", tmp_path / "mirrors", release, main)


def files_of(diff: bytes) -> list[str]:
    return [line.split()[3].removeprefix("b/") for line in diff.decode().splitlines() if line.startswith("diff --git")]


def test_a_request_that_was_rebased_after_the_release_brings_nothing_of_upstream(
    pull_merge_upstream: PullMergeUpstream,
) -> None:
    """Counted from the history of the release it would hold serve.py and new.py, too, and upstream's line 35."""
    rebased = pull_merge_upstream.request(
        7, {"drafter.py": lines(1, 40, line10="ten", line35="thirty-five")}, pull_merge_upstream.main
    )
    before = pull_merge_upstream.repository.git(
        "diff", "--name-only", f"{pull_merge_upstream.release}...{rebased}"
    ).split()
    assert before == ["drafter.py", "new.py", "serve.py"]
    diff = pull_merge_upstream.vendor(7)
    assert files_of(diff) == ["drafter.py"]
    assert pull_merge_upstream.after(diff, "drafter.py") == lines(1, 40, line10="ten")


def test_a_request_that_applies_as_it_is_stays_as_it_is(pull_merge_upstream: PullMergeUpstream) -> None:
    head = pull_merge_upstream.request(
        7, {"fresh.py": "fresh\n", "serve.py": lines(1, 40, line3="three")}, pull_merge_upstream.release
    )
    diff = pull_merge_upstream.vendor(7)
    assert diff == pull_merge_upstream.vendor(7, pull_merge_upstream.main)
    own = pull_merge_upstream.repository.git("diff", "--full-index", pull_merge_upstream.release, head)
    assert diff.decode().strip() == own


def test_changes_beside_each_other_are_merged_and_told(pull_merge_upstream: PullMergeUpstream) -> None:
    """Its context is upstream's line 30, which the release does not have: as it is, it applies nowhere but on main."""
    pull_merge_upstream.request(7, {"serve.py": lines(1, 40, line30="thirty", line28="28")}, pull_merge_upstream.main)
    diff = pull_merge_upstream.vendor(7)
    assert pull_merge_upstream.after(diff, "serve.py") == lines(1, 40, line28="28")
    short = pull_merge_upstream.release[:7]
    assert (
        pull_merge_upstream.messages[-1]
        == f"pull request 7 and {short} change the same files, and were merged: serve.py"
    )


def test_a_conflict_names_every_file_and_line(pull_merge_upstream: PullMergeUpstream) -> None:
    changed: dict[str, str | bytes | None] = {
        "serve.py": lines(1, 40, line30="XXX", line2="2"),
        "new.py": "newer\n",
        "logo.bin": b"\0" + bytes(9),
    }
    other = pull_merge_upstream.repository.commit(
        MAIN, "Another logo", {"logo.bin": b"\0logo"}, parent=pull_merge_upstream.main
    )
    pull_merge_upstream.request(7, changed, other)
    assert pull_merge_upstream.refused(7) == (
        f"pull request 7 does not apply to {pull_merge_upstream.release[:7]}: logo.bin is binary, and both change it; "
        "new.py does not exist there; serve.py is changed in the same lines by both"
    )


def test_a_file_that_both_add_and_one_that_is_removed_are_named(pull_merge_upstream: PullMergeUpstream) -> None:
    old = pull_merge_upstream.repository.commit(
        "refs/heads/old", "Old", {"old.py": "old\n"}, parent=pull_merge_upstream.release
    )
    pinned = pull_merge_upstream.repository.commit(
        "refs/heads/pin", "Pin", {"old.py": "older\n", "added.py": "1\n"}, parent=old
    )
    pull_merge_upstream.repository.git("update-ref", MAIN, old)
    pull_merge_upstream.request(7, {"old.py": None, "added.py": "2\n"}, old)
    assert pull_merge_upstream.refused(7, pinned) == (
        f"pull request 7 does not apply to {pinned[:7]}: added.py already exists with other contents; "
        "old.py is removed by the pull request, but has other contents there"
    )


def test_a_file_in_the_way_of_a_folder_is_named(pull_merge_upstream: PullMergeUpstream) -> None:
    pinned = pull_merge_upstream.repository.commit(
        "refs/heads/pin", "Pin", {"x": "a file\n", "y/z": "1\n"}, parent=pull_merge_upstream.main
    )
    pull_merge_upstream.request(7, {"x/y": "below\n", "y": "file\n"}, pull_merge_upstream.main)
    assert pull_merge_upstream.refused(7, pinned) == (
        f"pull request 7 does not apply to {pinned[:7]}: x is a file on one side and a folder on the other; "
        "y is a file on one side and a folder on the other"
    )


def test_a_folder_that_takes_the_place_of_a_file_goes_in(pull_merge_upstream: PullMergeUpstream) -> None:
    pull_merge_upstream.request(7, {"serve.py": None, "serve.py/main.py": "main\n"}, pull_merge_upstream.main)
    pinned = pull_merge_upstream.repository.commit(
        "refs/heads/pin", "Pin", {"else.py": "1\n"}, parent=pull_merge_upstream.main
    )
    assert sorted(files_of(pull_merge_upstream.vendor(7, pinned))) == ["serve.py", "serve.py/main.py"]


def test_a_rename_takes_the_release_s_own_lines_along(pull_merge_upstream: PullMergeUpstream) -> None:
    text = lines(1, 40, line30="thirty", line3="three")
    pull_merge_upstream.request(7, {"serve.py": None, "server.py": text}, pull_merge_upstream.main)
    diff = pull_merge_upstream.vendor(7)
    assert sorted(files_of(diff)) == ["serve.py", "server.py"]
    assert pull_merge_upstream.after(diff, "server.py") == lines(1, 40, line3="three")


def test_a_file_that_upstream_renamed_is_named_where_it_was(pull_merge_upstream: PullMergeUpstream) -> None:
    renamed = pull_merge_upstream.repository.commit(
        MAIN, "Rename", {"logo.bin": None, "art/logo.bin": START["logo.bin"]}
    )
    pull_merge_upstream.request(7, {"art/logo.bin": b"\0other"}, renamed)
    message = pull_merge_upstream.refused(7)
    assert message.endswith("art/logo.bin does not exist there (logo.bin is the same file)")


def test_binary_files_modes_and_links_come_along(pull_merge_upstream: PullMergeUpstream) -> None:
    pull_merge_upstream.repository.commit(
        "refs/pull/7/head",
        "All kinds",
        {"logo.bin": bytes(reversed(range(256))), "run.sh": "#!/bin/sh\n", "link": "run.sh"},
        parent=pull_merge_upstream.main,
        modes={"run.sh": "100755", "link": "120000"},
    )
    text = pull_merge_upstream.vendor(7).decode()
    assert "GIT binary patch" in text
    assert "new file mode 100755" in text
    assert "new file mode 120000" in text


def test_a_submodule_that_moves_is_refused(pull_merge_upstream: PullMergeUpstream) -> None:
    own = pull_merge_upstream.repository
    own.git("read-tree", pull_merge_upstream.main)
    own.git("update-index", "--add", "--cacheinfo", f"160000,{pull_merge_upstream.main},3rdparty/cutlass")
    head = own.git("commit-tree", own.git("write-tree"), "-p", pull_merge_upstream.main, "-m", "A newer cutlass")
    own.git("update-ref", "refs/pull/7/head", head)
    assert (
        pull_merge_upstream.refused(7) == "pull request 7 moves the submodule 3rdparty/cutlass, which a patch cannot do"
    )


def test_one_whose_changes_are_there_is_already_in_and_part_of_it_is_told(
    pull_merge_upstream: PullMergeUpstream,
) -> None:
    pull_merge_upstream.request(
        7, {"drafter.py": lines(1, 40, line10="ten"), "fresh.py": "fresh\n"}, pull_merge_upstream.main
    )
    half = pull_merge_upstream.repository.commit(
        MAIN, "Half of 7", {"fresh.py": "fresh\n"}, parent=pull_merge_upstream.main
    )
    assert files_of(pull_merge_upstream.vendor(7, half)) == ["drafter.py"]
    assert (
        pull_merge_upstream.messages[-1] == f"pull request 7: some of its changes are already in {half[:7]}: fresh.py"
    )
    whole = pull_merge_upstream.repository.commit(
        MAIN, "The rest", {"drafter.py": lines(1, 40, line10="ten")}, parent=half
    )
    assert pull_merge_upstream.refused(7, whole) == f"pull request 7 is already in {whole[:7]}"


@pytest.mark.long
def test_requests_on_one_another_are_merged_in_their_order(pull_merge_upstream: PullMergeUpstream) -> None:
    first = pull_merge_upstream.request(
        7, {"serve.py": lines(1, 40, line30="thirty", line5="five")}, pull_merge_upstream.main
    )
    second = pull_merge_upstream.request(
        8, {"serve.py": lines(1, 40, line30="thirty", line5="five", line6="six")}, first
    )
    eight = pull_merge_upstream.vendor(8, earlier=((SourcePatch("7", first), pull_merge_upstream.vendor(7)),))
    assert b"+six" in eight
    assert b"+five" not in eight
    alone = (SourcePatch("8", second), pull_merge_upstream.vendor(8))
    assert pull_merge_upstream.after(alone[1], "serve.py") == lines(1, 40, line5="five", line6="six")
    pinned = pull_merge_upstream.release[:7]
    held = f"pull request 7 is already in {pinned} with pull request 8"
    assert pull_merge_upstream.refused(7, earlier=(alone,)) == held


@pytest.mark.long
def test_two_that_conflict_are_both_named(pull_merge_upstream: PullMergeUpstream) -> None:
    heads = [
        pull_merge_upstream.request(6, {"else.py": "1\n"}, pull_merge_upstream.main),
        pull_merge_upstream.request(
            7, {"serve.py": lines(1, 40, line30="thirty", line5="five")}, pull_merge_upstream.main
        ),
    ]
    pull_merge_upstream.request(8, {"serve.py": lines(1, 40, line30="thirty", line5="FIVE")}, pull_merge_upstream.main)
    earlier = tuple(
        (SourcePatch(str(number), head), pull_merge_upstream.vendor(number))
        for number, head in enumerate(heads, start=6)
    )
    assert (
        pull_merge_upstream.refused(8, earlier=earlier)
        == "pull request 7 and pull request 8 conflict: serve.py is changed in the same lines by both"
    )


# Pull requests vendored as patches, fetched from a real server.


def vendor(vllm: Vllm, number: int, mirrors: str = "mirrors") -> Vendored:
    source = mirror.locate(vllm.mirrors.with_name(mirrors), vllm.url)
    return pulls.vendor(source, SourcePatch(str(number)), vllm.history.main)


def test_a_pull_request_is_its_changes_since_it_left_the_pinned_history(vllm: Vllm) -> None:
    vendored = vendor(vllm, 40898)
    assert (vendored[0].number, vendored[0].head) == (40898, vllm.history.pull_40898)
    assert vendored[0].sha256 == hashlib.sha256(vendored[1]).hexdigest()
    text = vendored[1].decode()
    names = [line for line in text.splitlines() if line.startswith("diff ")]
    assert names == ["diff --git a/vllm/picture.bin b/vllm/picture.bin", f"diff --git a/{DRAFTER} b/{DRAFTER}"]
    assert "-line 10\n+SLIDING\n" in text
    assert "GIT binary patch" in text


def test_no_setting_changes_a_byte(vllm: Vllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = vendor(vllm, 40898)
    attributes = tmp_path / "attributes"
    attributes.write_text("*.py -diff\n*.bin diff\n")
    settings = tmp_path / "gitconfig"
    settings.write_text(
        f"[core]\n abbrev = 12\n attributesFile = {attributes}\n quotePath = true\n[color]\n ui = always\n"
        "[diff]\n noprefix = true\n mnemonicPrefix = true\n context = 9\n algorithm = histogram\n renames = copies\n"
        " external = false\n suppressBlankEmpty = true\n interHunkContext = 60\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_DIFF_OPTS", "--unified=1")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'diff.context'='7'")
    assert vendor(vllm, 40898, "other-mirrors") == plain


def test_only_the_contents_of_changed_files_are_fetched(vllm: Vllm) -> None:
    vendor(vllm, 40898)
    kinds = vllm.git("cat-file", "--batch-all-objects", "--batch-check=%(objecttype)").split()
    assert kinds.count("blob") == 3


def test_its_head_outlives_a_force_push_and_the_branch(vllm: Vllm) -> None:
    vendored = vendor(vllm, 40898)
    upstream = vllm.history.repository
    upstream.commit("refs/pull/40898/head", "Rewritten", {DRAFTER: "nothing\n"}, parent=vllm.history.v0_19_0)
    second = vendor(vllm, 40898)
    assert second[0].head != vendored[0].head
    upstream.git("update-ref", "-d", "refs/pull/40898/head")
    upstream.git("gc", "--quiet", "--prune=now")
    with pytest.raises(MissingError, match="has no pull request 40898"):
        vendor(vllm, 40898)
    shutil.rmtree(vllm.server.root)
    vllm.git("gc", "--quiet", "--prune=now")
    content = mirror.read_files(vllm.source, vendored[0].head, [DRAFTER]).get(DRAFTER)
    assert content == lines(1, 60, line10="SLIDING", line50="fifty").encode()


def test_merge_requests_are_found_where_gitlab_keeps_them(vllm: Vllm) -> None:
    upstream = vllm.history.repository
    upstream.git("update-ref", "refs/merge-requests/7/head", vllm.history.pull_40727)
    assert vendor(vllm, 7)[0].head == vllm.history.pull_40727


def test_one_that_is_in_the_history_is_already_in(vllm: Vllm) -> None:
    with pytest.raises(SourceError, match=f"pull request 40001 is already in {vllm.history.main[:7]}"):
        vendor(vllm, 40001)


def test_one_that_does_not_exist_is_named(vllm: Vllm) -> None:
    with pytest.raises(MissingError, match="has no pull request 5"):
        vendor(vllm, 5)
    assert mirror.resolve_ref(vllm.source, "main").commit == vllm.history.main


def test_one_that_changes_nothing_or_shares_no_history_is_refused(vllm: Vllm) -> None:
    upstream = vllm.history.repository
    upstream.commit("refs/pull/8/head", "Empty", {}, parent=vllm.history.v0_19_1)
    with pytest.raises(SourceError, match="changes nothing"):
        vendor(vllm, 8)
    upstream.commit("refs/pull/9/head", "From nowhere", {"a": "1"})
    with pytest.raises(SourceError, match="shares no history with"):
        vendor(vllm, 9)

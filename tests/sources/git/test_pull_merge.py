"""Pull requests merged into the pinned commit: what only they change, three-way, and named where it does not go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.sources import patches, pulls
from builder.sources.git import Address, GitRepository
from builder.sources.pulls import EarlierPatch, RequestedPull
from tests.sources.git_server import Repository, lines, make_repository, serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


pytestmark = pytest.mark.slow

MAIN = "refs/heads/main"
START: dict[str, str | bytes | None] = {
    "drafter.py": lines(1, 40),
    "serve.py": lines(1, 40),
    "logo.bin": bytes(range(256)),
}


@dataclass
class Upstream:
    """A repository with a release and a main that went on from it."""

    repository: Repository
    url: str
    mirrors: Path
    release: str
    main: str
    messages: list[str] = field(default_factory=list)

    def request(self, number: int, files: Mapping[str, str | bytes | None], parent: str) -> str:
        return self.repository.commit(f"refs/pull/{number}/head", f"Number {number}", files, parent=parent)

    def vendor(self, number: int, commit: str = "", earlier: tuple[EarlierPatch, ...] = (), base: str = "") -> bytes:
        """The patch of a request for the release, which applies after the ``earlier`` ones as it has to."""
        self.messages.clear()
        pull = RequestedPull(number, base)
        commit = commit or self.release
        diff = pulls.vendor(self.mirrors, self.url, pull, commit, earlier, self.messages.append).diff
        before = [(patch.name, patch.diff) for patch in earlier]
        pulls.check_pull(self.mirrors, self.url, commit, [*before, (f"pull request {number}", diff)])
        return diff

    def refused(self, number: int, commit: str = "", earlier: tuple[EarlierPatch, ...] = (), base: str = "") -> str:
        with pytest.raises(SourceError) as caught:
            self.vendor(number, commit, earlier, base)
        assert caught.value.exit_code == 6
        assert caught.value.hint
        return caught.value.message

    def after(self, diff: bytes, path: str) -> str:
        """The text of a file of the release with ``diff`` applied to it."""
        (mirror,) = self.mirrors.glob("*.git")
        with patches.opened(GitRepository(mirror, Address(self.url))) as index:
            index.read(self.release)
            assert index.apply_error(diff) == ""
            return index.checked(["cat-file", "blob", f":{path}"]).output.decode()


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    own = make_repository(tmp_path / "served" / "vllm.git")
    release = own.commit(MAIN, "Release", START)
    own.git("tag", "v0.21.0", release)
    own.commit(MAIN, "Upstream goes on", {"serve.py": lines(1, 40, line30="thirty"), "new.py": "new\n"})
    main = own.commit(MAIN, "And on", {"drafter.py": lines(1, 40, line35="thirty-five")})
    with serve(tmp_path / "served") as server:
        yield Upstream(own, f"{server.url}/vllm.git", tmp_path / "mirrors", release, main)


def files_of(diff: bytes) -> list[str]:
    return [line.split()[3].removeprefix("b/") for line in diff.decode().splitlines() if line.startswith("diff --git")]


def test_a_request_that_was_rebased_after_the_release_brings_nothing_of_upstream(upstream: Upstream) -> None:
    """Counted from the history of the release it would hold serve.py and new.py, too, and upstream's line 35."""
    rebased = upstream.request(7, {"drafter.py": lines(1, 40, line10="ten", line35="thirty-five")}, upstream.main)
    before = upstream.repository.git("diff", "--name-only", f"{upstream.release}...{rebased}").split()
    assert before == ["drafter.py", "new.py", "serve.py"]
    diff = upstream.vendor(7)
    assert files_of(diff) == ["drafter.py"]
    assert upstream.after(diff, "drafter.py") == lines(1, 40, line10="ten")


def test_a_request_that_applies_as_it_is_stays_as_it_is(upstream: Upstream) -> None:
    head = upstream.request(7, {"fresh.py": "fresh\n", "serve.py": lines(1, 40, line3="three")}, upstream.release)
    diff = upstream.vendor(7)
    assert diff == upstream.vendor(7, upstream.main)
    own = upstream.repository.git("diff", "--full-index", upstream.release, head)
    assert diff.decode().strip() == own


def test_changes_beside_each_other_are_merged_and_told(upstream: Upstream) -> None:
    """Its context is upstream's line 30, which the release does not have: as it is, it applies nowhere but on main."""
    upstream.request(7, {"serve.py": lines(1, 40, line30="thirty", line28="28")}, upstream.main)
    diff = upstream.vendor(7)
    assert upstream.after(diff, "serve.py") == lines(1, 40, line28="28")
    short = upstream.release[:7]
    assert upstream.messages[-1] == f"pull request 7 is merged into {short}, which changes the same files: serve.py"


def test_a_conflict_names_every_file_and_line(upstream: Upstream) -> None:
    changed: dict[str, str | bytes | None] = {
        "serve.py": lines(1, 40, line30="XXX", line2="2"),
        "new.py": "newer\n",
        "logo.bin": b"\0" + bytes(9),
    }
    other = upstream.repository.commit(MAIN, "Another logo", {"logo.bin": b"\0logo"}, parent=upstream.main)
    upstream.request(7, changed, other)
    assert upstream.refused(7) == (
        f"pull request 7 does not apply to {upstream.release[:7]}: logo.bin is binary, and both change it; "
        "new.py does not exist there; serve.py at line 30"
    )


def test_a_file_that_both_add_and_one_that_is_removed_are_named(upstream: Upstream) -> None:
    old = upstream.repository.commit("refs/heads/old", "Old", {"old.py": "old\n"}, parent=upstream.release)
    pinned = upstream.repository.commit("refs/heads/pin", "Pin", {"old.py": "older\n", "added.py": "1\n"}, parent=old)
    upstream.repository.git("update-ref", MAIN, old)
    upstream.request(7, {"old.py": None, "added.py": "2\n"}, old)
    assert upstream.refused(7, pinned) == (
        f"pull request 7 does not apply to {pinned[:7]}: added.py already exists there, with other contents; "
        "old.py is removed by it, and has other contents there"
    )


def test_a_file_in_the_way_of_a_folder_is_named(upstream: Upstream) -> None:
    pinned = upstream.repository.commit("refs/heads/pin", "Pin", {"x": "a file\n", "y/z": "1\n"}, parent=upstream.main)
    upstream.request(7, {"x/y": "below\n", "y": "file\n"}, upstream.main)
    assert upstream.refused(7, pinned) == (
        f"pull request 7 does not apply to {pinned[:7]}: x/y is below x, which is a file there; y is a folder there"
    )


def test_a_folder_that_takes_the_place_of_a_file_goes_in(upstream: Upstream) -> None:
    upstream.request(7, {"serve.py": None, "serve.py/main.py": "main\n"}, upstream.main)
    pinned = upstream.repository.commit("refs/heads/pin", "Pin", {"else.py": "1\n"}, parent=upstream.main)
    assert sorted(files_of(upstream.vendor(7, pinned))) == ["serve.py", "serve.py/main.py"]


def test_a_rename_takes_the_release_s_own_lines_along(upstream: Upstream) -> None:
    text = lines(1, 40, line30="thirty", line3="three")
    upstream.request(7, {"serve.py": None, "server.py": text}, upstream.main)
    diff = upstream.vendor(7)
    assert sorted(files_of(diff)) == ["serve.py", "server.py"]
    assert upstream.after(diff, "server.py") == lines(1, 40, line3="three")


def test_a_file_that_upstream_renamed_is_named_where_it_was(upstream: Upstream) -> None:
    renamed = upstream.repository.commit(MAIN, "Rename", {"logo.bin": None, "art/logo.bin": START["logo.bin"]})
    upstream.request(7, {"art/logo.bin": b"\0other"}, renamed)
    message = upstream.refused(7)
    assert message.endswith("art/logo.bin does not exist there, where logo.bin is the same file")


def test_binary_files_modes_and_links_come_along(upstream: Upstream) -> None:
    upstream.repository.commit(
        "refs/pull/7/head",
        "All kinds",
        {"logo.bin": bytes(reversed(range(256))), "run.sh": "#!/bin/sh\n", "link": "run.sh"},
        parent=upstream.main,
        modes={"run.sh": "100755", "link": "120000"},
    )
    text = upstream.vendor(7).decode()
    assert "GIT binary patch" in text
    assert "new file mode 100755" in text
    assert "new file mode 120000" in text


def test_a_submodule_that_moves_is_refused(upstream: Upstream) -> None:
    own = upstream.repository
    own.git("read-tree", upstream.main)
    own.git("update-index", "--add", "--cacheinfo", f"160000,{upstream.main},3rdparty/cutlass")
    head = own.git("commit-tree", own.git("write-tree"), "-p", upstream.main, "-m", "A newer cutlass")
    own.git("update-ref", "refs/pull/7/head", head)
    assert upstream.refused(7) == "pull request 7 moves the submodule 3rdparty/cutlass, which a patch cannot do"


def test_one_whose_changes_are_there_is_already_in_and_part_of_it_is_told(upstream: Upstream) -> None:
    upstream.request(7, {"drafter.py": lines(1, 40, line10="ten"), "fresh.py": "fresh\n"}, upstream.main)
    half = upstream.repository.commit(MAIN, "Half of 7", {"fresh.py": "fresh\n"}, parent=upstream.main)
    assert files_of(upstream.vendor(7, half)) == ["drafter.py"]
    assert upstream.messages[-1] == f"pull request 7: these of its changes are in {half[:7]} already: fresh.py"
    whole = upstream.repository.commit(MAIN, "The rest", {"drafter.py": lines(1, 40, line10="ten")}, parent=half)
    assert upstream.refused(7, whole) == f"pull request 7 is already in {whole[:7]}: drop it"


def test_requests_on_one_another_are_merged_in_their_order(upstream: Upstream) -> None:
    first = upstream.request(7, {"serve.py": lines(1, 40, line30="thirty", line5="five")}, upstream.main)
    second = upstream.request(8, {"serve.py": lines(1, 40, line30="thirty", line5="five", line6="six")}, first)
    eight = upstream.vendor(8, earlier=(EarlierPatch("pull request 7", upstream.vendor(7), first),))
    assert b"+six" in eight
    assert b"+five" not in eight
    alone = EarlierPatch("pull request 8", upstream.vendor(8), second)
    assert upstream.after(alone.diff, "serve.py") == lines(1, 40, line5="five", line6="six")
    assert upstream.refused(7, earlier=(alone,)) == "pull request 7 is already in pull request 8: drop it"


def test_two_that_conflict_are_both_named(upstream: Upstream) -> None:
    heads = [
        upstream.request(6, {"else.py": "1\n"}, upstream.main),
        upstream.request(7, {"serve.py": lines(1, 40, line30="thirty", line5="five")}, upstream.main),
    ]
    upstream.request(8, {"serve.py": lines(1, 40, line30="thirty", line5="FIVE")}, upstream.main)
    earlier = tuple(
        EarlierPatch(f"pull request {number}", upstream.vendor(number), head)
        for number, head in enumerate(heads, start=6)
    )
    assert upstream.refused(8, earlier=earlier) == "pull request 7 and pull request 8 conflict: serve.py at line 5"

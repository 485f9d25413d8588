"""Patches tried on a pinned commit: one after the other."""

from __future__ import annotations

import shutil

import pytest

from builder.base.errors import SourceError
from builder.sources import pulls
from builder.sources.pulls import RequestedPull
from tests.sources.git_server import DRAFTER, INC, Vllm, lines

pytestmark = pytest.mark.slow


def patches(vllm: Vllm, *numbers: int) -> list[tuple[str, bytes]]:
    """The requests as they are: for the commits that they stand on."""
    return [(f"pull request {number}", _patch(vllm, number)) for number in numbers]


def _patch(vllm: Vllm, number: int) -> bytes:
    start = vllm.history.repository.git("merge-base", "refs/heads/main", f"refs/pull/{number}/head")
    return pulls.vendor(vllm.mirrors, vllm.url, RequestedPull(number), start).diff


def problems(vllm: Vllm, wanted: list[tuple[str, bytes]]) -> list[str]:
    """The problems that are reported, one a line."""
    with pytest.raises(SourceError) as caught:
        pulls.check_pull(vllm.mirrors, vllm.url, vllm.history.main, wanted)
    assert caught.value.exit_code == 6
    assert caught.value.hint
    return caught.value.message.splitlines()


def add(vllm: Vllm, number: int, files: dict[str, str | bytes | None]) -> None:
    vllm.history.repository.commit(f"refs/pull/{number}/head", f"Number {number}", files, parent=vllm.history.main)


def test_patches_that_apply_one_after_the_other_are_fine_offline_too(vllm: Vllm) -> None:
    wanted = patches(vllm, 40898, 40004)
    before = vllm.git("count-objects", "-v")
    pulls.check_pull(vllm.mirrors, vllm.url, vllm.history.main, wanted)
    shutil.rmtree(vllm.server.root)
    pulls.check_pull(vllm.mirrors, vllm.url, vllm.history.main, [*reversed(wanted)])
    pulls.check_pull(vllm.mirrors, vllm.url, vllm.history.main, [])
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
    patch = ("patch x", f"--- a/twice.txt\n+++ b/twice.txt\n@@ -2,7 +2,7 @@\n{body}".encode())
    first, second = patches(vllm, 1, 2)
    pulls.check_pull(vllm.mirrors, vllm.url, vllm.history.main, [first, patch])
    pulls.check_pull(vllm.mirrors, vllm.url, vllm.history.main, [second, patch])
    (problem,) = problems(vllm, [first, second, patch])
    assert problem.startswith(
        f"patch x does not apply to {vllm.history.main[:7]} after pull request 1, pull request 2: twice.txt,"
        " hunk 1 of 1 (@@ -2,7"
    )


def test_a_patch_that_leads_out_of_the_source_is_refused(vllm: Vllm) -> None:
    outside = b"--- a/../../x\n+++ b/../../x\n@@ -1 +1 @@\n-a\n+b\n"
    (problem,) = problems(vllm, [("patch a", outside)])
    assert "../../x" in problem
    assert not vllm.messages


def test_all_problems_are_found_at_once(vllm: Vllm) -> None:
    reported = problems(vllm, patches(vllm, 40003, 40898, 40727, 40002))
    assert [line.split(" ")[2] for line in reported] == ["40003", "40727", "40002"]


def test_files_that_are_there_or_are_not_are_named(vllm: Vllm) -> None:
    there = "--- /dev/null\n+++ b/README.md\n@@ -0,0 +1 @@\n+new\n"
    gone = "--- a/gone.py\n+++ b/gone.py\n@@ -1 +1 @@\n-old\n+new\n"
    renamed = "diff --git a/VERSION b/V\nsimilarity index 100%\nrename from VERSION\nrename to V\n"
    short = vllm.history.main[:7]
    assert problems(vllm, [("patch a", there.encode())]) == [
        f"patch a does not apply to {short}: README.md already exists"
    ]
    assert problems(vllm, [("patch b", gone.encode())]) == [
        f"patch b does not apply to {short}: gone.py does not exist"
    ]
    pulls.check_pull(vllm.mirrors, vllm.url, vllm.history.main, [("patch c", renamed.encode())])


@pytest.mark.parametrize("diff", [b"", b"no patch", b"--- a/README.md\n+++ b/README.md\n@@ -1,9 +1 @@\n-x\n"])
def test_what_is_no_patch_is_named(vllm: Vllm, diff: bytes) -> None:
    (problem,) = problems(vllm, [("patch a", diff)])
    assert problem.startswith("patch a is no patch that git can read")

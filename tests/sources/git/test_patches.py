"""Results of ``git apply``, from the real git's own messages."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.sources import patches
from builder.sources.patches import CandidatePatch, Hunk, PackageFiles, PatchOutcome, dry_run, prefetched
from tests.sources.git_server import lines

if TYPE_CHECKING:
    from collections.abc import Collection


TWO = b"""\
--- a/x/one.py
+++ b/x/one.py
@@ -1 +1 @@
-a
+b
diff --git a/x/old.py b/x/new.py
similarity index 100%
rename from x/old.py
rename to x/new.py
"""


@pytest.mark.parametrize(
    ("strip", "files"),
    [
        (1, {"x/one.py", "x/old.py", "x/new.py"}),
        (2, {"one.py", "old.py", "new.py"}),
    ],
)
def test_every_file_that_is_read_or_written_counts(strip: int, files: set[str]) -> None:
    assert patches.touched_files("two", TWO, strip) == files


def test_what_is_no_patch_is_named() -> None:
    with pytest.raises(
        SourceError, match="pull request 7 is not a patch that git can read: (?s:.*)No valid patches"
    ) as e:
        patches.touched_files("pull request 7", b"<html>")
    assert e.value.hint


def test_a_patch_without_a_and_b_is_not_called_edited() -> None:
    diff = b"diff --git top.py top.py\nindex 7898192..6178079 100644\n--- top.py\n+++ top.py\n@@ -1 +1 @@\n-a\n+b\n"
    with pytest.raises(SourceError, match="patch x is not a patch that git can read") as caught:
        patches.touched_files("patch x", diff)
    assert "its file names lack a/ and b/" in caught.value.hint


def test_what_git_says_in_other_words_is_passed_on() -> None:
    assert patches.failures("error: corrupt patch at line 7\n", b"") == "corrupt patch at line 7"


# Patches tried by the real git on the files that they touch: the three outcomes, and what is said of each.

INC = "vllm/layers/inc.py"
OLD = {INC: lines(1, 60), "vllm/b.py": "b\n"}


def tree(files: dict[str, str], before: tuple[CandidatePatch, ...] = ()) -> PackageFiles:
    def read(paths: Collection[str]) -> dict[str, bytes]:
        return {path: files[path].encode() for path in paths if path in files}

    return PackageFiles("vllm", read, before)


def patch(new: dict[str, str], old: dict[str, str] | None = None, name: str = "a.patch") -> CandidatePatch:
    """The change from ``old`` to ``new``; a file that one of the two lacks is added or removed."""
    text = ""
    before = OLD if old is None else old
    for path in sorted({*new, *before}):
        ours, theirs = before.get(path), new.get(path)
        names = (f"a/{path}" if ours is not None else "/dev/null", f"b/{path}" if theirs is not None else "/dev/null")
        changes = difflib.unified_diff((ours or "").splitlines(True), (theirs or "").splitlines(True), *names)
        text += "".join(changes)
    return CandidatePatch(name, text.encode())


def tried(
    files: dict[str, str], *patches: CandidatePatch, before: tuple[CandidatePatch, ...] = ()
) -> tuple[PatchOutcome, ...]:
    return dry_run(tree(files, before), patches)


CHANGE = patch({**OLD, INC: lines(1, 60, line10="ten", line40="forty")})


def test_one_that_fits_applies() -> None:
    assert tried(OLD, CHANGE) == (PatchOutcome("applies"),)


def test_one_that_is_in_already_is_in_place() -> None:
    done = {INC: lines(1, 60, line10="ten", line40="forty")}
    assert tried(done, CHANGE) == (PatchOutcome("in place"),)
    assert tried({INC: "new\n" + done[INC]}, CHANGE) == (PatchOutcome("in place"),)


def test_hunks_elsewhere_are_counted_in_lines() -> None:
    (outcome,) = tried({INC: "new\nnew\n" + lines(1, 60)}, CHANGE)
    assert outcome == PatchOutcome("applies", (2, 2))
    (outcome,) = tried({INC: lines(2, 60)}, CHANGE)
    assert outcome == PatchOutcome("applies", (-1, -1))


def test_part_of_the_context_is_enough_and_said() -> None:
    (outcome,) = tried({INC: lines(1, 60, line37="changed")}, CHANGE)
    assert outcome.state == "applies"
    (place,) = outcome.reduced
    assert place.startswith(f"{INC}: at line 3")
    assert place.endswith(", 2 lines before and 2 after match")
    assert outcome.offsets == ()


def test_no_context_at_all_is_not_enough() -> None:
    (outcome,) = tried({INC: lines(1, 60, line9="x", line11="y")}, CHANGE)
    assert outcome.state == "fails"


def test_what_does_not_apply_is_named_by_file_and_hunk() -> None:
    (outcome,) = tried({INC: lines(1, 60, line40="other")}, CHANGE)
    assert outcome == PatchOutcome("fails", problem=f"{INC}, hunk 2 of 2 (@@ -37,7 +37,7 @@)")


def test_half_in_place_is_neither() -> None:
    assert [outcome.state for outcome in tried({INC: lines(1, 60, line10="ten")}, CHANGE)] == ["fails"]


def test_every_file_that_fails_is_named() -> None:
    both = patch({INC: lines(1, 60, line10="ten"), "vllm/b.py": "B\n"})
    (outcome,) = tried({"vllm/b.py": "other\n"}, both)
    assert outcome.problem == f"vllm/b.py, hunk 1 of 1 (@@ -1 +1 @@); {INC} does not exist"


def test_a_new_file_must_not_be_there_but_as_it_would_be() -> None:
    new = patch({**OLD, "vllm/new.py": "new\n"})
    assert [outcome.state for outcome in tried(OLD, new)] == ["applies"]
    assert [outcome.state for outcome in tried({**OLD, "vllm/new.py": "new\n"}, new)] == ["in place"]
    (outcome,) = tried({**OLD, "vllm/new.py": "another\n"}, new)
    assert outcome.problem == "vllm/new.py already exists"


def test_a_removed_file_stays_removed() -> None:
    gone = patch({INC: OLD[INC]})
    assert [outcome.state for outcome in tried(OLD, gone)] == ["applies"]
    assert [outcome.state for outcome in tried({INC: OLD[INC]}, gone)] == ["in place"]


def test_each_is_tried_after_those_before_it() -> None:
    second = patch({INC: lines(1, 60, line10="TEN")}, {INC: lines(1, 60, line10="ten")}, "b.patch")
    assert [outcome.state for outcome in tried(OLD, CHANGE, second)] == ["applies", "applies"]
    assert [outcome.state for outcome in tried(OLD, second, CHANGE)] == ["fails", "applies"]
    assert [outcome.state for outcome in tried(OLD, CHANGE, CHANGE)] == ["applies", "in place"]


def test_what_the_source_is_built_with_is_there_first() -> None:
    pull = patch({INC: lines(1, 60, line10="TEN"), "vllm/b.py": "B\n"}, name="pull request 1")
    on_it = patch({INC: lines(1, 60, line10="ten")}, {INC: lines(1, 60, line10="TEN")})
    assert [outcome.state for outcome in tried(OLD, on_it)] == ["fails"]
    assert [outcome.state for outcome in tried(OLD, on_it, before=(pull,))] == ["applies"]
    with pytest.raises(SourceError, match="pull request 1 does not apply to its source: vllm/b.py, hunk 1"):
        tried({**OLD, "vllm/b.py": "x\n"}, patch({**OLD, "vllm/b.py": "x\n"}), before=(pull,))


def test_only_files_of_the_package_are_there() -> None:
    outside = patch({"tests/a.py": "b\n"}, {"tests/a.py": "a\n"})
    (outcome,) = tried({"tests/a.py": "a\n"}, outside)
    assert outcome == PatchOutcome("fails", problem="tests/a.py does not exist")


def test_folders_are_taken_off_as_said() -> None:
    deep = CandidatePatch("deep", CHANGE.diff.replace(b" a/", b" x/a/").replace(b" b/", b" x/b/"), strip=2)
    plain = CandidatePatch("plain", CHANGE.diff.replace(b" a/", b" ").replace(b" b/", b" "), strip=0)
    for candidate in (deep, plain):
        assert tried(OLD, candidate) == (PatchOutcome("applies"),)
        (outcome,) = tried({INC: lines(1, 60, line40="other")}, candidate)
        assert outcome.problem == f"{INC}, hunk 2 of 2 (@@ -37,7 +37,7 @@)"


def test_a_renamed_file_is_needed_under_its_old_name() -> None:
    head = b"diff --git a/vllm/b.py b/vllm/c.py\nsimilarity index 100%\nrename from vllm/b.py\nrename to vllm/c.py\n"
    renaming = CandidatePatch("renaming", head)
    assert renaming.touched_files == {"vllm/b.py", "vllm/c.py"}
    assert tried(OLD, renaming) == (PatchOutcome("applies"),)
    assert tried({"vllm/c.py": "b\n"}, renaming) == (PatchOutcome("in place"),)


def test_a_patch_cannot_write_outside_the_folder() -> None:
    escaping = CandidatePatch("escaping", b"--- /dev/null\n+++ b/../../escaped\n@@ -0,0 +1 @@\n+x\n")
    (outcome,) = tried(OLD, escaping)
    assert outcome.state == "fails"
    assert "invalid path '../../escaped'" in outcome.problem


def test_what_is_no_patch_does_not_apply() -> None:
    nothing, cut, whole = tried(
        OLD, CandidatePatch("nothing", b"hello\n"), CandidatePatch("cut", CHANGE.diff[:-30]), CHANGE
    )
    assert (nothing.state, cut.state, whole.state) == ("fails", "fails", "applies")
    assert "No valid patches" in nothing.problem
    assert "corrupt patch" in cut.problem


def test_files_fetched_for_several_are_fetched_once() -> None:
    requests: list[set[str]] = []

    def read(paths: Collection[str]) -> dict[str, bytes]:
        requests.append(set(paths))
        return {path: OLD[path].encode() for path in paths}

    second = patch({**OLD, "vllm/b.py": "B\n"})
    both = prefetched(PackageFiles("vllm", read), (CHANGE, second))
    assert [dry_run(both, (candidate,))[0].state for candidate in (CHANGE, second)] == [
        "applies",
        "applies",
    ]
    assert requests == [{INC, "vllm/b.py"}]


# The hunks of a diff, told apart from lines that only look like headers.

DIFF = b"""\
diff --git a/one.py b/one.py
--- a/one.py
+++ b/one.py
@@ -1,3 +1,3 @@ class One:
 a
--- a/not-a-file
+++ b/not-a-file
 c
@@ -9 +9 @@
-x
\\ No newline at end of file
+y
\\ No newline at end of file
diff --git a/new file.py b/new file.py
--- /dev/null
+++ b/new file.py\t
@@ -0,0 +1,2 @@
+@@ -5,5 +5,5 @@
+b
diff --git a/gone.py b/gone.py
--- a/gone.py
+++ /dev/null
@@ -1,2 +0,0 @@
-a
-b
"""


def test_hunks_are_found_with_their_files() -> None:
    assert patches.diff_hunks(DIFF) == (
        Hunk("one.py", 1, "@@ -1,3 +1,3 @@ class One:"),
        Hunk("one.py", 9, "@@ -9 +9 @@"),
        Hunk("new file.py", 0, "@@ -0,0 +1,2 @@"),
        Hunk("gone.py", 1, "@@ -1,2 +0,0 @@"),
    )


def test_a_hunk_is_said_by_number_and_header() -> None:
    assert patches.describe_hunk(DIFF, "one.py", 9) == "one.py, hunk 2 of 2 (@@ -9 +9 @@)"
    assert patches.describe_hunk(DIFF, "other.py", 9) == "other.py, line 9"


def test_more_or_no_folders_are_taken_off_the_names() -> None:
    deep = b"--- a/x/one.py\n+++ b/x/one.py\n@@ -1 +1 @@\n-a\n+b\n"
    assert [patches.diff_hunks(deep, strip)[0].file for strip in (0, 1, 2)] == ["a/x/one.py", "x/one.py", "one.py"]


def test_a_diff_that_breaks_off_ends_there() -> None:
    assert len(patches.diff_hunks(DIFF[:70])) == 1
    assert patches.diff_hunks(b"") == ()


def test_a_hunk_at_a_line_that_no_file_has() -> None:
    assert patches.diff_hunks(b"--- a/x\n+++ b/x\n@@ -" + b"9" * 5000 + b" +1 @@\n-a\n+b\n") == ()

"""Results of ``git apply``, from the real git's own messages."""

from __future__ import annotations

import pytest

from builder.base.errors import SourceError
from builder.sources import patches
from builder.sources.patches import Shift

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
    with pytest.raises(SourceError, match="pull request 7 is no patch that git can read: (?s:.*)No valid patches") as e:
        patches.touched_files("pull request 7", b"<html>")
    assert e.value.hint


def test_a_hunk_of_which_the_end_alone_is_cut_off_is_known_by_its_line() -> None:
    """git tells no offset there, so nothing says its number but where it begins."""
    patch = b"--- a/a\n+++ b/a\n@@ -1,1 +1,2 @@\n+new\n a\n@@ -9,3 +10,3 @@\n-x\n+y\n b\n c\n"
    stderr = "Checking patch a...\nContext reduced to (0/1) to apply fragment at 10\n"
    assert patches.shifts(stderr, patch) == (Shift("a", 2, 2, 10, 0, (0, 1)),)
    stderr = stderr.replace("at 10", "at 77")
    (shift,) = patches.shifts(stderr, patch)
    assert str(shift) == "a: at line 77, where 0 lines before and 1 after fit"
    assert str(Shift("a", 2, 2, 10, -1)) == "a, hunk 2 of 2: 1 line further up"


def test_what_git_says_in_other_words_is_passed_on() -> None:
    assert patches.failures("error: corrupt patch at line 7\n", b"") == "corrupt patch at line 7"

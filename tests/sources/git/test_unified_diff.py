"""The hunks of a diff, told apart from lines that only look like headers."""

from __future__ import annotations

from builder.sources import patches
from builder.sources.patches import Hunk

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
        Hunk("one.py", 1, 1, "@@ -1,3 +1,3 @@ class One:"),
        Hunk("one.py", 9, 9, "@@ -9 +9 @@"),
        Hunk("new file.py", 0, 1, "@@ -0,0 +1,2 @@"),
        Hunk("gone.py", 1, 0, "@@ -1,2 +0,0 @@"),
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

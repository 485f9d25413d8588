from __future__ import annotations

import pytest

from builder.base import yaml_file
from builder.base.errors import FileProblemsError

HEAD = "name: x\n"
TAIL = "mods:\n  - a\n"


def fault(text: str) -> str:
    with pytest.raises(FileProblemsError) as caught:
        yaml_file.load(text, "f")
    (problem,) = caught.value.problems
    return str(problem).removeprefix("f:")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("a: b: c\n", "2:5: the value of `a` holds a colon and a space; quote it: a: 'b: c'"),
        ("a:\n  b: it's: c\n", "3:10: the value of `b` holds a colon and a space; quote it: b: 'it''s: c'"),
        ("a:\n  port:8000\n  tp: 1\n", "3:7: a space is missing after the colon: `port: 8000`"),
        ("a:\n  tp: 1\n  port:8000\n  b: 1\n", "4:7: a space is missing after the colon: `port: 8000`"),
        ("a:\n  tp: 1\n  port:8000 # why\n", "4:7: a space is missing after the colon: `port: 8000`"),
        ("container:c\n", "2:10: a space is missing after the colon: `container: c`"),
        ("a:\n  port 8000\n  tp: 1\n", "3:7: a colon is missing: `port: 8000`"),
        ("a:\n  tp: 1\n  port 8000\n  b: 1\n", "4:7: a colon is missing: `port: 8000`"),
        ("defaults\n  port: 8000\n", "2:9: a colon is missing: `defaults:`"),
        ("env\n\n# why\n  A: 1\n", "2:4: a colon is missing: `env:`"),
        ("(see below)\n", "2:1: no `key: value`: `(see below)`"),
        ("a:\n  b: 1\n\tc: 2\n", "4:1: a tab in the indentation: YAML takes spaces only"),
        ("a:\n\tb: 1\n", "3:1: a tab in the indentation: YAML takes spaces only"),
        ('a: "b\nc: d\n', "2:4: the quote that opens here is never closed"),
        ('a: "b\nc: "d"\n', "2:4: the quote that opens here is not closed on its line"),
        ('a: "b" c\n', "2:8: text follows the closing quote; quote the whole value of `a`"),
        ("a: {b}:1\n", "2:7: a value that begins with `{` ends where that is closed; quote the value of `a`"),
        ("a: [b, c\n", "2:4: the `[` that opens here is not closed, or a comma is missing in it"),
        ("a: {b: c\n", "2:4: the `{` that opens here is not closed, or a comma is missing in it"),
        ("a: @b\n", "2:4: a value cannot begin with `@`; quote it"),
        ("a: `b`\n", "2:4: a value cannot begin with a backtick; quote it"),
        ("a: *b*\n", "2:4: a value cannot begin with `*` or `&`; quote it"),
        ("a: *b\n", "2:4: a value cannot begin with `*`; quote it"),
        ("a:\n  b: 1\n   c: 2\n", "4:4: this line is indented more than the one above, whose value is complete"),
        ("a:\n    b: 1\n  c: 2\n", "4:3: the indentation of this line fits none above it"),
        ("a:\n  - b\n - c\n", "4:2: the indentation of this line fits none above it"),
        ("a:\n  b: 1\n  - c\n", "4:3: an item of a list among keys"),
        ("a:\n- b\n  c:\n", "4:3: this line is indented more than the one above, whose value is complete"),
        ("a:\n  - b\n  c: 1\n", "4:3: an item of a list begins with `- `, all at the same column"),
        ("a: - b\n", "2:4: a list begins on the line after its key"),
        ('a: "\\d"\n', "2:5: double quotes know no such escape; use single quotes"),
        ("---\na: 1\n", "2:1: a second document begins here; a file holds one"),
        ("a: | b\n  c\n", "2:6: a text begins on the line after its `|` or `>`"),
        (": b\n", "2:1: a key is missing before the colon"),
        ("a: ? b\n", "2:4: a `?` has no place here"),
        ("a: b\n  and c: d\n", "3:8: a colon and a space inside a value; quote the value"),
        (
            "command:\n  serve x \\\n    --y '{\"a\": 1}'\n",
            "2:1: a text over several lines begins with `|`: `command: |`",
        ),
        ('command: x {"a": 1}\n', "2:16: the value of `command` holds a colon and a space; put it below `command: |`"),
    ],
)
def test_a_fault_is_told_in_plain_words_where_it_is(lines: str, expected: str) -> None:
    assert fault(f"{HEAD}{lines}{TAIL}").startswith(expected)


@pytest.mark.parametrize("around", ["{}", "defaults:\n  a: 1\n{}", "command: |\n  x \\\n{}  --y\n"])
def test_marks_of_a_conflict_are_told_with_all_their_lines(around: str) -> None:
    marks = "<<<<<<< HEAD\n  b: 1\n=======\n  b: 2\n>>>>>>> theirs\n"
    text = HEAD + around.format(marks)
    first = text[: text.index("<<<")].count("\n") + 1
    assert fault(text) == (
        f"{first}:1: marks of a merge conflict (lines {first}, {first + 2}, {first + 4}): "
        "keep one version, and remove the marks"
    )


def test_a_first_line_that_is_indented() -> None:
    assert fault("# why\n a: 1\nb: 2\n") == "2:1: this line is indented, and those below that belong beside it are not"


def test_what_looks_like_a_mark_is_none() -> None:
    assert yaml_file.conflict("command: |\n  cat <<<<<<<x\n=======\n") is None

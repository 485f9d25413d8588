"""Everything that can be wrong with images.lock is refused, with the line and column of each fault."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.base.errors import LockError
from builder.lock.lock_file import parse_and_explain, parse_bytes, read_lock
from builder.lock.model import Lock

if TYPE_CHECKING:
    from pathlib import Path

    from hypothesis.strategies import DataObject


CPU = "vllm-node-cpu"
HERE = "▶"  # stands in a text where its fault must be reported


def faults_of(text: str) -> tuple[list[str], LockError]:
    """The lines of the error for ``text`` without the marks, and the error."""
    with pytest.raises(LockError) as raised:
        parse_and_explain(text.replace(HERE, ""))
    return raised.value.message.split("\n"), raised.value


def places_of(text: str) -> list[str]:
    """``images.lock:LINE:COLUMN`` of each mark."""
    lines = text.split("\n")
    return [
        f"images.lock:{number}:{index + 1 - line[:index].count(HERE)}"
        for number, line in enumerate(lines, 1)
        for index, character in enumerate(line)
        if character == HERE
    ]


def line_of(text: str, line: str) -> int:
    """The number of the one line that is ``line``."""
    return text.split("\n").index(line) + 1


def changed(golden: str, old: str, new: str) -> str:
    assert golden.count(old) == 1, f"{old!r} stands {golden.count(old)} times"
    return golden.replace(old, new)


@pytest.mark.parametrize("target", ["/dev/zero", "pipe"])
def test_what_has_no_end_is_not_read(tmp_path: Path, target: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "images.lock").symlink_to(target)
    with pytest.raises(LockError, match="cannot be read: it is no plain file"):
        read_lock(tmp_path / "images.lock")


def test_golden(full: Lock, golden: str) -> None:
    assert parse_and_explain(golden) == full


def test_a_missing_file_is_an_empty_lock(tmp_path: Path) -> None:
    assert read_lock(tmp_path / "images.lock") == Lock()


def test_a_file_is_read(tmp_path: Path, full: Lock, golden: str) -> None:
    (tmp_path / "images.lock").write_text(golden)
    assert read_lock(tmp_path / "images.lock") == full


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    next: 12\n", "    next: 12 # the next one\n"),
        ("\n          - transformers>=5\n", "\n          # why\n          -   transformers>=5\n"),
        ("        newest: 2026-11-18T09:30:00Z", "        newest: '2026-11-18T09:30:00Z'"),
        ('          version: "0.40"', "          version: 0.40"),
        ('  "1.0":', "  1.0:"),
        ("        asked: []", "        asked:\n          []"),
        ("    numbers: {}\n", ""),
        ("      2:\n", "      # 2\n      2:\n"),
        ("    numbers: {}\n", "    numbers: {}\n      # 1\n      # 2\n      # after 10\n"),
        ("      2:\n", "# more\n\n      2:\n"),
        ("          commit: null", "          commit: ~"),
        ("          commit: null\n", ""),
        ("    next: 4", '    "next": "4"'),
        ("version: 1\n", "version: 1\r\n"),
        ("# images.lock", "\ufeff# images.lock"),
        ("\n...\n", "\n..."),
        ("\n...\n", "\n...\n\n \n"),
    ],
)
def test_other_spellings_mean_the_same(full: Lock, golden: str, old: str, new: str) -> None:
    assert old in golden
    assert parse_and_explain(golden.replace(old, new, 1)) == full


IMAGE = "expected an image as engines name it, such as `debian:bookworm-slim`"
NUMBER = "expected a whole number from 1 on"
STATUS = "expected `untested`, `good` or `bad`"
HASHES = "expected a version and `sha256:` hashes of 64 hex digits"
WRONG = [
    ("    next: 4", "    ▶nxt: 4", "unknown key `nxt`: did you mean `next`?"),
    ("        pinned: true", "        ▶pined: true", "unknown key `pined`: did you mean `pinned`?"),
    ("        pinned: true", "        ▶frobnicate: true", "unknown key `frobnicate`"),
    ("        pinned: true", "        ▶pinned: yes", "`pinned`: expected `true` or `false`, found `yes`"),
    ("\nimages:", "\n▶pictures:", "unknown key `pictures`"),
    ("\nimages:", "\n▶models: {}\n\nimages:", "unknown key `models`"),
    (
        '        status: bad\n        note: "st',
        '        ▶status: great\n        note: "st',
        f"`status`: {STATUS}, found `great`",
    ),
    ("    next: 4", "    ▶next: many", f"`next`: {NUMBER}, found `many`"),
    ("    next: 4", "    ▶next: 0", f"`next`: {NUMBER}, found `0`"),
    ("    next: 4", "    ▶next: 04", f"`next`: {NUMBER}, found `04`"),
    ("    next: 4", "    ▶next: ٤", f"`next`: {NUMBER}, found `٤`"),
    ("    next: 4", "    ▶next:", f"`next`: {NUMBER}, found nothing"),
    ("    next: 4", f"    ▶next: {'4' * 5000}", f"`next`: {NUMBER}, found `{'4' * 60}…`"),
    ("    next: 4", "    ▶next: [4]", f"`next`: {NUMBER}, found a list"),
    (
        "  vllm-node-empty:\n    next: 4\n    numbers: {}",
        "  ▶vllm-node-empty: 4",
        "`vllm-node-empty`: expected a block of keys, found `4`",
    ),
    ("    numbers: {}", "    ▶numbers: []", "`numbers`: expected a block of keys, found a list"),
    ("    next: 4", "    next: 4\n    ▶current: 1", "unknown key `current`"),
    ("\n        sequence: 2\n", "\n        ▶sequence: 0\n", f"`sequence`: {NUMBER}, found `0`"),
    ("\n        sequence: 2\n", "\n        ▶sequence: two\n", f"`sequence`: {NUMBER}, found `two`"),
    (
        "        pruned: 2026-11-22T08:00:00Z",
        "        ▶pruned: true",
        "`pruned`: expected a time in UTC such as `2026-11-20T22:00:00Z`, found `true`",
    ),
    ("\n      10:\n", "\n      ▶ten:\n", f"`ten`: {NUMBER}, found `ten`"),
    ("        asked: debian:bookworm-slim", "        ▶asked:", f"`asked`: {IMAGE}, found nothing"),
    ("        asked: debian:bookworm-slim", "        ▶asked: {a: b}", f"`asked`: {IMAGE}, found a block of keys"),
    ("          - ray[default]", "          - ▶[ray]", "expected one line that is no option, found a list"),
    ("      base:\n        asked: debian:bookworm-slim\n", "      ▶base:\n", "`base`: lacks `asked`"),
    (
        "          numpy: 2.4 sha256:0",
        "          ▶numpy: 2.4 sha256:",
        f"`numpy`: {HASHES}, found `2.4 sha256:{49 * '0'}…`",
    ),
    (
        "          Qwen/Qwen3-0.6B:\n            sequence: 2\n",
        "          ▶Qwen/Qwen3-0.6B:\n",
        "`Qwen/Qwen3-0.6B`: lacks `sequence`",
    ),
    ("            sequence: 2\n", "            sequence: 2\n            ▶image: x:1\n", "unknown key `image`"),
    ("\n        sequence: 2\n", "\n        ▶turn: 2\n", "unknown key `turn`: it is called `sequence` now"),
    ("            sequence: 2\n", "            ▶turn: 2\n", "unknown key `turn`: it is called `sequence` now"),
    ("    next: 4", "    next: 4\n    ▶turn: 2", "unknown key `turn`"),
    ("    next: 4", "    next: 4\n    ▶next: 5", "`next` stands twice, first in images.lock:{line}:5"),
    ("    next: 4", "    next: 4\n    ? ▶[a]\n    : b", "a key must be plain text"),
    ("    next: 4", "    next: &x 4\n    ▶current: *x", "an alias has no place in this file"),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG)
def test_anything_wrong_is_named(golden: str, old: str, new: str, message: str) -> None:
    text = changed(golden, old, new)
    lines, error = faults_of(text)
    expected = message.replace("{line}", str(text.replace(HERE, "")[: text.index(HERE)].count("\n")))
    assert lines == [f"{places_of(text)[0]}: {expected}"]
    assert error.exit_code == 4
    assert "git checkout -- images.lock" in error.hint


def test_all_faults_are_reported_at_once(golden: str) -> None:
    text = changed(golden, "    next: 4", "    ▶next: four\n    ▶pevious: []")
    text = changed(text, "        resolved: local", "        ▶resolve: local")
    text = changed(text, "            revision: c", "            ▶revision: [c]\n            ▶recipe: c")
    lines, _ = faults_of(text)
    assert [line.split(": ")[0] for line in lines] == places_of(text)


def test_the_sequences_decide_whatever_their_gaps(golden: str, full: Lock) -> None:
    text = changed(golden, "        sequence: 3\n        definition", "        sequence: 70\n        definition")
    assert parse_and_explain(changed(text, "            sequence: 3\n", "            sequence: 9\n")) == full


def test_of_two_branches_that_built_the_higher_number_is_current(golden: str, full: Lock) -> None:
    text = changed(golden, "        sequence: 3\n        definition", "        sequence: 2\n        definition")
    text = changed(text, "            sequence: 3\n", "            sequence: 2\n")
    lock = parse_and_explain(text)
    assert (lock.images[CPU].current, lock.images[CPU].previous) == (10, (2, 1))
    assert [pairing.image.number for pairing in lock.models["Qwen/Qwen3-0.6B"].previous] == [2, 1]


def test_a_next_below_a_number_given_means_nothing(golden: str) -> None:
    assert parse_and_explain(changed(golden, "    next: 12", "    next: 3")).images[CPU].next == 11


def test_a_number_that_two_branches_gave_is_named(golden: str) -> None:
    start = golden.index("\n      10:\n")
    block = golden[start : golden.index("\n  vllm-node-empty")]
    text = golden.replace(block, block + block.replace("      10:", f"      {HERE}10:"))
    lines, _ = faults_of(text)
    first = line_of(golden, "      10:")
    assert lines == [f"{places_of(text)[0]}: `10` stands twice, first in images.lock:{first}:7"]


@pytest.mark.parametrize(("version", "column"), [("2", 1), ("17", 1), ("0", 1)])
def test_another_version_is_named_before_all_else(golden: str, version: str, column: int) -> None:
    text = golden.replace("version: 1\n", f"version: {version}\n").replace("    next: 4", "    later: 4")
    lines, error = faults_of(text)
    assert lines == [f"images.lock:5:{column}: images.lock is version {version}; this builder reads 1"]
    assert "update builder" in error.hint


@pytest.mark.parametrize("version", ["2", "99999"])
def test_another_version_with_nothing_new_in_it_is_refused_too(golden: str, version: str) -> None:
    assert "is version" in faults_of(golden.replace("version: 1\n", f"version: {version}\n"))[0][0]


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("version: one\n", "images.lock:5:1: `version`: expected `1`, found `one`"),
        ("version:\n", "images.lock:5:1: `version`: expected `1`, found nothing"),
        ("", "images.lock:6:1: lacks `version`"),
    ],
)
def test_a_lock_must_say_its_version(golden: str, version: str, message: str) -> None:
    assert faults_of(golden.replace("version: 1\n", version))[0] == [message]


def test_conflict_markers_are_named_before_all_else(golden: str) -> None:
    text = changed(
        golden,
        "    next: 12\n",
        "▶<<<<<<< HEAD\n    next: 12\n▶||||||| 1a2b3c4\n    next: 11\n▶=======\n    next: [\n▶>>>>>>> tf5 (next)\n",
    )
    lines, error = faults_of(text)
    marks = ["<<<<<<< HEAD", "||||||| 1a2b3c4", "=======", ">>>>>>> tf5 (next)"]
    assert lines == [f"{at}: git conflict marker `{m}`" for at, m in zip(places_of(text), marks, strict=True)]
    assert "builder lock --renumber" in error.hint
    with pytest.raises(LockError, match="git conflict marker `=======`"):
        parse_and_explain(text.replace(HERE, "").replace("\n", "\r\n"))


def test_a_note_may_hold_a_conflict_marker(golden: str) -> None:
    text = changed(golden, 'note: "fast: 12 tokens/s # on 8 cores"', r'note: "<<<<<<< HEAD\n=======\n"')
    assert parse_and_explain(text).images[CPU].numbers[1].note == "<<<<<<< HEAD\n=======\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    next: 12", "    next: ▶[2", "the `[` that opens here is not closed"),
        ("    next: 12", "▶\tnext: 2", "a tab in the indentation"),
        ("    next: 12", "   ▶next: 2", ""),
        ('            note: "null"', '            note: "▶null', ""),
        ("    next: 4", "    next: 4\n...\n▶images: {}", ""),
        ("    next: 4", "    next: 4\x00", "the character U+0000 has no place in a text file"),
        ("    next: 4", f"    next: {'[' * 100_000}", "blocks within blocks, too deep"),
    ],
)
def test_a_text_that_is_not_yaml_is_named(golden: str, old: str, new: str, message: str) -> None:
    lines, error = faults_of(changed(golden, old, new))
    assert lines[0].startswith("images.lock:")
    assert ": not YAML: " in lines[0]
    assert message in "\n".join(lines)
    assert "git checkout -- images.lock" in error.hint
    assert "--recover" in error.hint


def test_characters_that_yaml_refuses_have_their_place(golden: str) -> None:
    text = changed(golden, "stürzt ab", "stürzt ▶\x07 ab")
    message = "not YAML: the character U+0007 has no place in a text file; remove it"
    assert faults_of(text)[0] == [f"{places_of(text)[0]}: {message}"]


def test_yaml_mistakes_have_their_place(golden: str) -> None:
    text = changed(golden, "    next: 4", "    next: 4▶: 5")
    assert faults_of(text)[0][0].startswith(
        f"{places_of(text)[0]}: not YAML: the value of `next` holds a colon and a space"
    )


@pytest.mark.parametrize("text", ["", "\n", " \n\n"])
def test_an_empty_file_is_no_empty_lock(text: str) -> None:
    assert faults_of(text)[0] == ["images.lock:1:1: the file is empty"]


@pytest.mark.parametrize("text", ["...\n", "# a\n...\n", "[]\n...\n", "null\n...\n", "a\n...\n"])
def test_a_file_that_says_nothing_is_no_empty_lock(text: str) -> None:
    assert faults_of(text)[0][0].startswith("images.lock:")


def test_a_lock_cut_off_anywhere_is_never_read_as_a_shorter_one(full: Lock, golden: str) -> None:
    content = golden.encode()
    assert parse_bytes(content[:-1], "images.lock") == full  # only the last line end is missing
    for length in range(len(content) - 1):
        with pytest.raises(LockError):
            parse_bytes(content[:length], "images.lock")
        with pytest.raises(LockError):  # a file system that kept the length and lost the rest
            parse_bytes(content[:length].ljust(len(content), b"\0"), "images.lock")


def test_where_it_is_cut_off(golden: str) -> None:
    lines, error = faults_of(golden[: golden.index("    next: 4")])
    last = line_of(golden, "    next: 4") - 1
    assert lines == [f"images.lock:{last}:1: cut off here: the last line must be `...`"]
    assert "git checkout -- images.lock" in error.hint


def test_bytes_that_are_not_text_have_their_place(golden: str) -> None:
    content = golden.encode().replace("stürzt".encode(), "stürzt".encode("latin-1"))
    line = next(n for n, line in enumerate(golden.split("\n"), 1) if "stürzt" in line)
    with pytest.raises(LockError, match=rf"^images.lock:{line}:18: not UTF-8 text$"):
        parse_bytes(content, "images.lock")


def test_a_folder_is_no_lock(tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"cannot be read: Is a directory"):
        read_lock(tmp_path)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_damage_is_a_lock_error_or_a_lock(golden: str, data: DataObject) -> None:
    content = golden.encode()
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, min(len(content), start + 200)))
    some = [b"", b"\n", b"  ", b": ", b"- ", b"[", b"{", b'"', b"&a ", b"*a"]
    put = data.draw(st.binary(max_size=8) | st.sampled_from(some))
    try:
        lock = parse_bytes(content[:start] + put + content[end:], "images.lock")
    except LockError as error:
        assert error.message.startswith("images.lock:")
    else:
        assert isinstance(lock, Lock)


def test_a_digest_is_one(golden: str) -> None:
    text = golden.replace("        status: good\n", f"        status: good\n        {HERE}digest: sha256:1234\n", 1)
    (line,), _ = faults_of(text)
    expected = "expected a digest such as `sha256:` and 64 hex digits, found `sha256:1234`"
    assert line == f"{places_of(text)[0]}: `digest`: {expected}"

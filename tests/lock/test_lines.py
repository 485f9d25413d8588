"""Quoting keeps every string, for PyYAML too; the quick reader reads what the YAML reader reads, or leaves it to it."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.base.errors import LockError, UsageError
from builder.base.yaml_file import load
from builder.lock.kinds import quote, read_layout, unquote
from builder.lock.text import dump_lock
from builder.lock.yaml_tree import read_tree

if TYPE_CHECKING:
    from pathlib import Path

    from hypothesis.strategies import DataObject, SearchStrategy

    from builder.lock.model import Lock


PUT = [*" :-#\"'\\?&*!|>%@`{}[],~\t\r.\n\x85\u2028\ufeffnaN0", "  ", "- ", ": ", "\n\n"]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_it_reads_all_that_the_program_writes(locks: SearchStrategy[Lock], data: DataObject) -> None:
    text = dump_lock(data.draw(locks))
    data_read = read_layout(text)
    if data_read is None:
        assert "? " in text  # a key too long for one line
    else:
        assert data_read == read_tree(text, "x").data


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(data=st.data())
def test_it_never_reads_another_thing_than_yaml(golden: str, data: DataObject) -> None:
    lines = golden.split("\n")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 3))
        line = lines[at]
        where = data.draw(st.integers(0, len(line)))
        new = data.draw(st.sampled_from(PUT))
        kind = data.draw(st.sampled_from(["insert", "replace", "cut", "drop", "double", "indent"]))
        changed = {
            "insert": [line[:where] + new + line[where:]],
            "replace": [line[:where] + new + line[where + 1 :]],
            "cut": [line[:where]],
            "drop": [],
            "double": [line, line],
            "indent": [f"  {line}"],
        }[kind]
        lines[at : at + 1] = changed
    text = "\n".join(lines)
    data_read = read_layout(text)
    if data_read is not None:
        tree = read_tree(text, "x")
        assert (tree.data, tree.problems) == (data_read, [])


@pytest.mark.parametrize(
    "text",
    [
        "a:\n- b\n...\n",  # a list that is not indented
        "a:\n    b: c\n...\n",  # four spaces
        "a:\n   b: c\n...\n",
        "a: b\na: c\n...\n",
        "a: b # c\n...\n",
        "a: 'b'\n...\n",
        "a: &x b\n...\n",
        'a: "\\x41"\n...\n',
        'a: "\\ud83d\\ude00"\n...\n',
        "a: b\n  c\n...\n",
        "a:\n...\n",
        "a:\n  - b\n  c: d\n...\n",
        "a: b\r\n...\r\n",
        "a: {b: c}\n...\n",
        "a: NULL\n...\n",
        "  a: b\n...\n",
        "- a\n...\n",
        "---\na: b\n...\n",
        "a: b\n...\nc: d\n...\n",
        f"{'a' * 1100}: b\n...\n",
        "...\n",
    ],
)
def test_another_layout_is_left_to_the_yaml_reader(text: str) -> None:
    assert read_layout(text) is None


def test_a_comment_between_blocks_is_no_other_layout() -> None:
    assert read_layout("a: b\n# why\n\nc:\n  - d: e\n    f: null\n  - g: {}\n...\n") == {
        "a": "b",
        "c": [{"d": "e", "f": None}, {"g": {}}],
    }


def test_a_good_file_is_read_without_a_yaml_parser(tmp_path: Path, golden: str) -> None:
    (tmp_path / "images.lock").write_text(golden)
    code = (
        "import pathlib, sys; from builder.lock.lock_file import read_lock; "
        "lock = read_lock(pathlib.Path('images.lock')); "
        "print(len(lock.images), sorted({'yaml', 'json', 'jsonschema_rs', 'difflib'} & set(sys.modules)))"
    )
    path = {"PYTHONPATH": ":".join(sys.path)}
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=path, capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("4 []\n", "")


def test_a_problem_that_both_readers_refuse_is_named_by_the_yaml_reader(golden: str) -> None:
    text = golden.replace("    next: 12", "    next: 12: 13")
    assert read_layout(text) is None
    line = text.split("\n").index("    next: 12: 13") + 1
    with pytest.raises(LockError, match=rf"images.lock:{line}:13: not YAML: the value of `next` holds a colon"):
        read_tree(text, "images.lock")


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("debian:bookworm-slim", "debian:bookworm-slim"),
        ("transformers>=5", "transformers>=5"),
        ("ray[default]", "ray[default]"),
        ("two words", "two words"),
        ("2026-11-20T22:00:00Z", "2026-11-20T22:00:00Z"),
        ("0.32.0", "0.32.0"),
        ("", '""'),
        ("0.32", '"0.32"'),
        ("1e3", '"1e3"'),
        ("0o17", '"0o17"'),
        ("12:30", '"12:30"'),
        ("2026-11-20", '"2026-11-20"'),
        ("Null", '"Null"'),
        ("off", '"off"'),
        ("-x", '"-x"'),
        ("a: b", '"a: b"'),
        ("a #b", '"a #b"'),
        ("läuft", '"läuft"'),
        ('say "no"\\\n', '"say \\"no\\"\\\\\\n"'),
        ("\x00\x85\u2028\ufeff", '"\\u0000\\u0085\\u2028\\ufeff"'),
    ],
)
def test_quotes_only_where_needed(text: str, quoted: str) -> None:
    assert quote(text) == quoted
    assert (unquote(quoted) if quoted.startswith('"') else quoted) == text


@settings(deadline=None)
@given(data=st.data())
def test_every_text_is_one_line_and_reads_back(texts: SearchStrategy[str], data: DataObject) -> None:
    text = data.draw(texts)
    quoted = quote(text)
    assert quoted.isprintable() or any(ord(character) > 0xA0 for character in quoted)
    assert len(quoted.splitlines()) == 1
    assert load(f"- {quoted}\n- a:\n    b: {quoted}\n", "x") == [text, {"a": {"b": text}}]


@settings(deadline=None)
@given(data=st.data())
def test_pyyaml_sees_the_same_text_but_for_times(texts: SearchStrategy[str], data: DataObject) -> None:
    text = data.draw(texts)
    seen = yaml.safe_load(f"a: {quote(text)}")["a"]
    assert seen == text or isinstance(seen, datetime)


def test_bytes_that_are_not_text_are_refused() -> None:
    with pytest.raises(UsageError, match=r"'caf\\udce9' is not UTF-8 text"):
        quote(b"caf\xe9".decode(errors="surrogateescape"))

"""Quoting keeps every string, for PyYAML too; the quick reader reads what the YAML reader reads, or leaves it to it."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.base import words, yaml_file
from builder.base.errors import LockError, UsageError
from builder.base.yaml_file import load
from builder.commands import about
from builder.definitions import source_patches
from builder.definitions.source_patches import SourcePatch
from builder.lock import checking, layout, model
from builder.lock.model import Lock
from builder.lock.text import dump_lock, quote, read_layout, read_tree
from tests import shipped_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hypothesis.strategies import DataObject, SearchStrategy


PUT = [*" :-#\"'\\?&*!|>%@`{}[],~\t\r.\n\x85\u2028\ufeffnaN0", "  ", "- ", ": ", "\n\n"]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_it_reads_all_that_the_program_writes(locks: SearchStrategy[Lock], data: DataObject) -> None:
    text = dump_lock(data.draw(locks))
    data_read = read_layout(text)
    if data_read is None:
        # A key too long for one line, or a character that not every version of Unicode has.
        assert "? " in text or not text.replace("\n", "").isprintable()
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
        "a: b\na: c\n...\n",
        "a:\n    b: c\n...\n",
        "a:\n   b: c\n...\n",
        "a:\n- b\n...\n",
        "a: b # c\n...\n",
        "a: 'b'\n...\n",
        "a: &x b\n...\n",
        'a: "\\x41"\n...\n',
        'a: "\\ud83d\\ude00"\n...\n',
        "a: b\n  c\n...\n",
        "a:\n...\n",
        "a:\nb: c\n...\n",
        "a:\n  b:\n    c:\n      d: e\n...\n",
        "a: b\r\n...\r\n",
        "a: {b}\n...\n",
        "a: {b: c, b: d}\n...\n",
        "a: {b: c,}\n...\n",
        "a: {b: [c}\n...\n",
        "a: [b: c]\n...\n",
        "a: [null]\n...\n",
        "a: [b]]\n...\n",
        "a: [b\n...\n",
        "a: {\n...\n",
        "a: NULL\n...\n",
        "  a: b\n...\n",
        "- a\n...\n",
        "---\na: b\n...\n",
        "a: b\n...\nc: d\n...\n",
        f"a: {'[' * 1000}{']' * 1000}\n...\n",
        f"{'a' * 1100}: b\n...\n",
        "...\n",
    ],
)
def test_another_layout_is_left_to_the_yaml_reader(text: str) -> None:
    assert read_layout(text) is None


@pytest.mark.parametrize("nothing", ["", "~", "null", "Null", "NULL"])
def test_nothing_is_read_however_yaml_writes_it_and_in_quotes_it_is_text(nothing: str) -> None:
    assert read_tree(f'a: {nothing}\nb: "{nothing}"\n', "x").data == {"a": None, "b": nothing}


def test_a_comment_between_blocks_is_no_other_layout() -> None:
    assert read_layout("a: b\n# why\n\nc:\n  d:\n    e: {f: [g h, i],\n      j: {}}\n  k: []\n...\n") == {
        "a": "b",
        "c": {"d": {"e": {"f": ["g h", "i"], "j": {}}}, "k": []},
    }


def test_a_good_file_is_read_without_a_yaml_parser(tmp_path: Path, golden: str) -> None:
    (tmp_path / "images.lock").write_text(golden)
    code = (
        "import pathlib, sys; from builder.lock.lock_file import read_lock; "
        "lock = read_lock(pathlib.Path('images.lock')); "
        "print(len(lock.images), sorted({'yaml', 'jsonschema_rs', 'difflib'} & set(sys.modules)))"
    )
    path = {"PYTHONPATH": ":".join(sys.path)}
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=path, capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("4 []\n", "")


def test_a_problem_that_both_readers_refuse_is_named_by_the_yaml_reader(golden: str) -> None:
    text = golden.replace("    next: 12", "    next: 12: 13")
    assert read_layout(text) is None
    line = text.split("\n").index("    next: 12: 13") + 1
    with pytest.raises(LockError, match=rf"images.lock:{line}:13: not YAML: mapping values are not allowed"):
        read_tree(text, "images.lock")


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("debian:bookworm-slim", "debian:bookworm-slim"),
        ("transformers>=5", "transformers>=5"),
        ("ray[default]", '"ray[default]"'),
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
    assert (json.loads(quoted) if quoted.startswith('"') else quoted) == text


@pytest.mark.slow
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


# The schema of images.lock says what the reader takes: no key more, no key less, and the same values.

SCHEMA = json.loads(about.text("lock"))
VALIDATOR = jsonschema_rs.Draft202012Validator(SCHEMA)
TIME = "2026-11-20T22:00:00Z"
VALUES: list[Any] = [None, [], {}, "x", "", 0, 1, 2.5, True, ["x"], [None], {"x": None}, {"x": {}}, TIME]
OF_NEW_KEYS: list[Any] = [[], {}, "x", 1, True, TIME]


def loaded(text: str) -> Any:
    return yaml_file.load(text, "images.lock")


def complete(full: Lock) -> Any:
    """A lock with every key: the largest blocks of the golden one, a source from git, and what builds it, and one that
    comes with its base."""
    pull = SourcePatch("40898", "ab" * 20, "cd" * 32)
    patch = SourcePatch("fixes/a.patch", sha256="cd" * 32, strip=0)
    git = model.GitPin("https://host/vllm.git", "main", "ef" * 20, "0.40", "2026-11-20T22:00:00Z", (pull, patch))
    more = model.Pins(sources={"vllm": git}, build=model.PythonPin(("setuptools",), "", ()))
    base = model.BasePin("others/vllm:latest", "sha256:" + "ab" * 32, TIME, (model.LockedPackage("torch", "2.13", ()),))
    brought = model.Pins(base, {"vllm": model.IncludedPin(base.resolved, "0.40", "ef" * 20)})
    full = full.with_pins("dflash", "linux/arm64", more).with_pins("node", "linux/arm64", brought)
    data = loaded(dump_lock(full))
    data["images"]["vllm-node-cpu"]["10"] |= {
        "digest": "sha256:" + "12" * 32,
        "builder": "spark",
        "gpu": "NVIDIA GB10",
    }
    del data["models"]["1.0"], data["images"]["localhost:5000/vllm-node-tf5"]
    del data["builds"]["tf5 linux/arm64"], data["builds"]["tf5 linux/amd64"]
    return data


def as_read(data: Any) -> Any:
    """``data`` as the reader gets it: every scalar as it is written."""
    if isinstance(data, dict):
        return {key: as_read(value) for key, value in data.items()}
    if isinstance(data, list):
        return [as_read(value) for value in data]
    return data if data is None or isinstance(data, str) else json.dumps(data)


def is_read(data: Any) -> bool:
    return not checking.problems(as_read(data))


def keys_of(schema: Any) -> set[str]:
    """Every key that the schema names, at any depth."""
    if isinstance(schema, list):
        return set().union(*map(keys_of, schema))
    if not isinstance(schema, dict):
        return set()
    own = schema.get("properties", {})
    return set(own).union(*map(keys_of, schema.values()))


def containers(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all values in ``data`` that hold others."""
    if isinstance(data, dict | list):
        yield path
        for key in data if isinstance(data, dict) else range(len(data)):
            yield from containers(data[key], (*path, key))


def at(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


def mutations(data: Any, keys: set[str]) -> Iterator[str]:
    """Changes one thing in ``data`` at a time, says what, and takes it back: a key gone, one that stands elsewhere put
    in, another value."""
    for path in list(containers(data)):
        block = at(data, path)
        whole = copy.copy(block)
        for key in list(block) if isinstance(block, dict) else range(len(block)):
            del block[key]
            yield f"{path}: without {key}"
            _put_back(block, whole)
        for key, value in values(block, keys):
            block[key] = value
            yield f"{path}: {key} is {value!r}"
            _put_back(block, whole)


def _put_back(block: Any, whole: Any) -> None:
    block.clear()
    block.update(whole) if isinstance(block, dict) else block.extend(whole)


def values(block: Any, keys: set[str]) -> Iterator[tuple[Any, Any]]:
    own = list(block) if isinstance(block, dict) else range(len(block))
    yield from ((key, value) for key in own for value in VALUES)
    if isinstance(block, dict):
        yield from ((key, value) for key in sorted(keys - block.keys()) for value in OF_NEW_KEYS)


def test_patterns_of_other_pages_are_the_same() -> None:
    assert words.DEFINITION in checking.pattern("definition")
    assert words.RECIPE_FILE in checking.pattern("recipe")
    assert source_patches.FILE in checking.pattern("patch-file")


def test_the_golden_lock_and_the_shipped_one_are_valid(golden: str) -> None:
    shipped = (shipped_files.project().root / "images.lock").read_text(encoding="utf-8")
    for text in (golden, shipped):
        assert [error.message for error in VALIDATOR.iter_errors(loaded(text))] == []


@pytest.mark.parametrize("lock", [Lock()])
def test_an_empty_lock_is_valid(lock: Lock) -> None:
    assert VALIDATOR.is_valid(loaded(dump_lock(lock)))


@pytest.mark.slow
def test_every_written_lock_is_valid(locks: st.SearchStrategy[Lock]) -> None:
    @settings(max_examples=100, deadline=None)
    @given(locks)
    def check(lock: Lock) -> None:
        assert [error.message for error in VALIDATOR.iter_errors(loaded(dump_lock(lock)))] == []

    check()


def test_every_key_is_in_the_sample(full: Lock) -> None:
    used: set[str] = set()
    data = complete(full)
    for path in containers(data):
        used |= set(at(data, path)) if isinstance(at(data, path), dict) else set()
    assert keys_of(SCHEMA) <= used


@pytest.mark.slow
def test_reader_and_schema_agree_on_every_change(full: Lock) -> None:
    fields = {field.name for kind in vars(model).values() if dataclasses.is_dataclass(kind)
              for field in dataclasses.fields(kind)}  # fmt: skip
    named = set(re.findall(r'"([a-z_]+)"', Path(layout.__file__).read_text(encoding="utf-8")))
    data = complete(full)
    assert is_read(data)
    assert VALIDATOR.is_valid(data)
    tried = 0
    for change in mutations(data, keys_of(SCHEMA) | fields | named):
        assert VALIDATOR.is_valid(data) == is_read(data), change
        tried += 1
    assert tried > 5_000


@pytest.mark.parametrize("day", ["2026-13-01", "2026-02-29", "2026-04-31", "0000-01-01", "0001-01-01", "9999-12-31"])
def test_a_day_that_no_calendar_has(day: str) -> None:
    assert not checking.is_a("time", f"{day}T00:00:00Z")
    assert not checking.is_a("time", "2026-01-01T25:00:00Z")
    assert checking.is_a("time", "2024-02-29T23:59:59.5Z")

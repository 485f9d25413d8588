"""The schema of images.lock says what the reader takes: no key more, no key less, and the same values."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest
from hypothesis import given, settings

from builder.base import yaml_file
from builder.commands import about
from builder.lock import kinds, model
from builder.lock.kinds import WrongError
from builder.lock.model import Lock
from builder.lock.text import dump_lock
from tests import shipped_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hypothesis import strategies as st


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
    pull = model.PullPin(40898, "ab" * 20, "cd" * 32)
    git = model.GitPin("https://host/vllm.git", "main", "ef" * 20, "0.40", "2026-11-20T22:00:00Z", (pull,))
    more = model.Pins(sources={"vllm": git}, build=model.PythonPin(("setuptools",), "", ()))
    base = model.BasePin("others/vllm:latest", "sha256:" + "ab" * 32, TIME, (model.LockedPackage("torch", "2.13", ()),))
    brought = model.Pins(base, {"vllm": model.IncludedPin(base.resolved, "0.40", "ef" * 20)})
    full = full.with_pins("dflash", "linux/arm64", more).with_pins("node", "linux/arm64", brought)
    data = loaded(dump_lock(full))
    data["images"]["vllm-node-cpu"]["numbers"]["10"] |= {
        "digest": "sha256:" + "12" * 32,
        "builder": "spark",
        "gpu": "NVIDIA GB10",
    }
    del data["definitions"]["tf5"], data["images"]["localhost:5000/vllm-node-tf5"]
    return data


def as_read(data: Any) -> Any:
    """``data`` as the reader gets it: every scalar as it is written."""
    if isinstance(data, dict):
        return {key: as_read(value) for key, value in data.items()}
    if isinstance(data, list):
        return [as_read(value) for value in data]
    return data if data is None or isinstance(data, str) else json.dumps(data)


def is_read(data: Any) -> bool:
    try:
        kinds.lock_of(as_read(data))
    except WrongError:
        return False
    return True


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


def test_the_file_is_what_the_records_make() -> None:
    assert about.text("lock") == kinds.text(), "`make reference` writes it anew"


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
    named = set(re.findall(r'"([a-z_]+)"', Path(kinds.__file__).read_text(encoding="utf-8")))
    data = complete(full)
    assert is_read(data)
    assert VALIDATOR.is_valid(data)
    tried = 0
    for change in mutations(data, keys_of(SCHEMA) | fields | named):
        assert VALIDATOR.is_valid(data) == is_read(data), change
        tried += 1
    assert tried > 5_000

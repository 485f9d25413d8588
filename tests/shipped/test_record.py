"""The record of what `init` wrote."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError
from builder.base.project import Project
from builder.moving import shipped
from builder.moving.shipped import InitRecord

if TYPE_CHECKING:
    from pathlib import Path


RECORD = InitRecord("0.1.0 (abc)", "cpu", {"b": "sha256:2", "a": "sha256:1"})


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert shipped.read_shipped_record(Project(tmp_path)) is None
    shipped.write_shipped_record(Project(tmp_path), RECORD)
    assert shipped.read_shipped_record(Project(tmp_path)) == RECORD


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"contents": "everything"},
        {"files": ["a"]},
        {"files": {"a": 1}},
    ],
)
def test_one_that_means_something_else_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    shipped.write_shipped_record(Project(tmp_path), RECORD)
    path = tmp_path / shipped.FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(FileProblemsError, match=shipped.FILE):
        shipped.read_shipped_record(Project(tmp_path))


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"null"])
def test_a_damaged_one_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / shipped.FILE).write_bytes(content)
    with pytest.raises(FileProblemsError, match=shipped.FILE):
        shipped.read_shipped_record(Project(tmp_path))

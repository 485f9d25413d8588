"""``mods pin`` against a real HTTP server."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError, NothingToDoError, SourceError, UsageError
from builder.base.events import ignore
from builder.commands import mods
from builder.definitions.mod import load_mod
from tests import projects, web_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.web_server import Web


@pytest.fixture
def web() -> Iterator[Web]:
    with web_server.serving() as server:
        server.files |= {"/a.jinja": b"a\n", "/b.py": b"b\n"}
        yield server


def test_what_is_there_today_is_filled_in(tmp_path: Path, web: Web) -> None:
    project = projects.make(tmp_path)
    yaml = f"description: x\nfiles:\n  - from: {web.url}/a.jinja\n    to: .\n  - {{from: {web.url}/b.py, to: lib/}}\n"
    projects.write(project.mods / "m/mod.yaml", yaml)
    with pytest.raises(FileProblemsError, match="`builder mods pin m` fills in that of what is there today"):
        load_mod(project, "m")
    first, second = mods.pin_mod_files(project, "mods/m", {}, ignore)
    assert (first.sha256, first.before) == (hashlib.sha256(b"a\n").hexdigest(), "")
    mod = load_mod(project, "m")
    assert [copy.sha256 for copy in mod.copies] == [first.sha256, second.sha256]
    assert mods.changes(mod) == (f"2 files (from {web.url.removeprefix('http://')}, pinned)",)
    web.files["/a.jinja"] = b"changed\n"
    changed, same = mods.pin_mod_files(project, "m", {}, ignore)
    assert (changed.before, changed.sha256) == (first.sha256, hashlib.sha256(b"changed\n").hexdigest())
    assert (same.before, same.sha256) == (second.sha256, second.sha256)


def test_nothing_is_written_before_all_are_here(tmp_path: Path, web: Web) -> None:
    project = projects.make(tmp_path)
    yaml = f"description: x\nfiles: [{{from: {web.url}/a.jinja, to: .}}, {{from: {web.url}/none, to: .}}]\n"
    projects.write(project.mods / "m/mod.yaml", yaml)
    with pytest.raises(SourceError, match="the server says 404"):
        mods.pin_mod_files(project, "m", {}, ignore)
    assert (project.mods / "m/mod.yaml").read_text() == yaml


def test_a_mod_without_addresses_has_nothing_to_pin(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.write(project.mods / "m/mod.yaml", "description: x\nenv: {A: 1}\n")
    with pytest.raises(NothingToDoError):
        mods.pin_mod_files(project, "m", {}, ignore)
    with pytest.raises(UsageError, match=r"there is no mods/template/mod\.yaml"):
        mods.pin_mod_files(project, "template", {}, ignore)

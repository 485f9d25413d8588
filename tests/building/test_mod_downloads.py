"""Files of mods from addresses, fetched from a real HTTP server."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from builder.base import files
from builder.base.errors import FileProblemsError, SourceError
from builder.base.project import Project
from builder.building import mod_choice
from builder.definitions.mod import Mod, load_mod
from builder.sources import python
from tests import projects, web_server, workspaces

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.web_server import Web


TEMPLATE = b"{{ messages }}\n"
CHANGED = b"changed\n"
DIGEST = hashlib.sha256(TEMPLATE).hexdigest()


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setattr(python, "_PAUSES", (0.01, 0.01))
    with web_server.serving() as server:
        server.files["/model/chat.jinja"] = TEMPLATE
        yield server


def fetch(project: Project, address: str, sha256: str = DIGEST) -> Mod:
    yaml = f"description: x\nfiles:\n  - {{from: '{address}', to: ., sha256: '{sha256}'}}\n"
    projects.write(project.mods / "chat/mod.yaml", yaml)
    workspace = workspaces.workspace(project, workspaces.NO_ENGINE)
    ((mod,),) = mod_choice.fetch_mod_files(workspace, [(load_mod(project, "chat"),)])
    return mod


def test_a_file_is_fetched_once_and_kept(tmp_path: Path, web: Web) -> None:
    project = Project(tmp_path)
    address = f"{web.url}/model/chat.jinja?download=true"
    mod = fetch(project, address)
    (file,) = mod.fetched
    assert (file.path, file.content, file.executable) == (f".fetched/{DIGEST}/chat.jinja", TEMPLATE, False)
    assert [path.name for path in project.downloads.iterdir()] == [DIGEST]
    assert fetch(project, address) == mod
    assert web.requests == ["/model/chat.jinja"]


def test_a_file_that_no_mod_names_any_more_is_stale(tmp_path: Path, web: Web) -> None:
    project = Project(tmp_path)
    fetch(project, f"{web.url}/model/chat.jinja")
    web.files["/model/chat.jinja"] = CHANGED
    changed = hashlib.sha256(CHANGED).hexdigest()
    fetch(project, f"{web.url}/model/chat.jinja", changed)
    parts = [".1.2", f".{changed}.1.2"]  # what killed processes left, in two ways of naming it
    for name in (*parts, "mine"):
        projects.write(project.downloads / name, "x")
    (project.downloads / ("c" * 64)).symlink_to(tmp_path)
    with files.beside(project.downloads / "another"):
        assert [path.name for path in mod_choice.stale(project)] == sorted([*parts, DIGEST])
    projects.write(project.mods / "broken/mod.yaml", "files: [")
    assert mod_choice.stale(project) == ()


def test_the_content_hash_is_that_of_the_content_and_not_of_the_address(tmp_path: Path, web: Web) -> None:
    project = Project(tmp_path)
    web.files["/mirror/chat.jinja"] = TEMPLATE
    first, second = (fetch(project, f"{web.url}/{folder}/chat.jinja") for folder in ("model", "mirror"))
    assert first.content_hash == second.content_hash
    assert load_mod(project, "chat").content_hash == first.content_hash


def test_another_content_is_an_error_with_both_hashes(tmp_path: Path, web: Web) -> None:
    project = Project(tmp_path)
    web.files["/model/chat.jinja"] = CHANGED
    with pytest.raises(SourceError) as caught:
        fetch(project, f"{web.url}/model/chat.jinja")
    assert caught.value.message == (
        f"mods/chat/mod.yaml:3:6: {web.url}/model/chat.jinja has another content:\n"
        f"  sha256 {hashlib.sha256(CHANGED).hexdigest()} is what is there today,\n"
        f"  sha256 {DIGEST} is what mod.yaml says"
    )
    assert "`builder mods pin chat`" in caught.value.hint
    assert list(project.downloads.glob("*")) == []


def test_what_is_kept_is_compared_again(tmp_path: Path, web: Web) -> None:
    project = Project(tmp_path)
    (project.downloads).mkdir(parents=True)
    (project.downloads / DIGEST).write_bytes(b"cut o")
    assert fetch(project, f"{web.url}/model/chat.jinja").fetched[0].content == TEMPLATE
    assert (project.downloads / DIGEST).read_bytes() == TEMPLATE


def test_a_content_that_is_gone_comes_from_an_earlier_build(tmp_path: Path, web: Web) -> None:
    project = Project(tmp_path)
    projects.write(project.builds / f"small/1/lower/mods/chat/.fetched/{DIGEST}/chat.jinja", TEMPLATE.decode())
    assert fetch(project, f"{web.url}/gone/chat.jinja").fetched[0].content == TEMPLATE
    with pytest.raises(SourceError, match="the server says 404"):
        fetch(project, f"{web.url}/gone/chat.jinja", "0" * 64)


def test_a_server_that_is_busy_is_asked_again(tmp_path: Path, web: Web) -> None:
    web.busy = 2
    web.redirects["/latest/chat.jinja"] = f"{web.url}/model/chat.jinja"
    assert fetch(Project(tmp_path), f"{web.url}/latest/chat.jinja").fetched[0].content == TEMPLATE
    web.busy = 3
    with pytest.raises(SourceError, match=r"does not answer \(3 tries\): the server says 503"):
        fetch(Project(tmp_path / "other"), f"{web.url}/model/chat.jinja")


def test_what_is_too_large_or_leads_elsewhere_is_refused(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path)
    web.redirects["/file/passwd"] = "file:///etc/passwd"
    with pytest.raises(SourceError):
        fetch(project, f"{web.url}/file/passwd")
    monkeypatch.setattr(mod_choice, "LARGEST_FILE", 5)
    with pytest.raises(SourceError, match="more than 5 bytes"):
        fetch(project, f"{web.url}/model/chat.jinja")
    assert list(project.downloads.glob("*")) == []
    port = web.url.rpartition(":")[2]
    with pytest.raises(SourceError) as caught:
        fetch(project, f"http://me:secret@127.0.0.1:{port}/gone/x")
    assert "secret" not in caught.value.message


def test_a_template_from_an_address_that_cannot_be_compiled_ends_the_build_before_it_begins(
    tmp_path: Path, web: Web
) -> None:
    broken = b"{% if tools %}\n{{ tools }\n"
    web.files["/model/chat.jinja"] = broken
    with pytest.raises(FileProblemsError, match=r"mods/chat/chat\.jinja:2:1: no chat template that can be"):
        fetch(Project(tmp_path), f"{web.url}/model/chat.jinja", hashlib.sha256(broken).hexdigest())

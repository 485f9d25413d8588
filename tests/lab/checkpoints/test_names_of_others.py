"""Names, links and records of checkpoints that others wrote: what leads elsewhere is refused or left out."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from builder.base.errors import BuilderError, LockError, NewerLockError
from builder.commands import checkpoints
from builder.lock import checkpoints_lock
from tests import hub_server, projects, safetensors_files
from tests.lab.checkpoints import made
from tests.lab.checkpoints.made import Kitchen
from tests.workspaces import NO_ENGINE, workspace

if TYPE_CHECKING:
    from pathlib import Path

    from builder.base.project import Project


MODEL = "Org/Small"
REVISION = "a" * 40
RECORD: dict[str, Any] = {
    "sequence": 1,
    "model": MODEL,
    "inputs": "b" * 64,
    "steps": "c" * 64,
    "tensors": 1,
    "mods": ["enable-hybrid-int4fp8"],
    "folder": "~/models",
    "sources": {"all": {"requested": "hf: Org/Small@main", "files": {"x": {"size": 1}}}},
    "files": {"config.json": {"size": 1, "digest": f"sha256:{'d' * 64}"}},
}


def lock(record: dict[str, Any], name: str = "small", revision: str = REVISION, **more: Any) -> bytes:
    return json.dumps({"version": 1, "checkpoints": {name: {revision: record}}, **more}).encode()


def test_a_record_is_read() -> None:
    records = checkpoints_lock.parse_checkpoints_lock(lock(RECORD), "checkpoints.lock")
    assert records.current("small") == REVISION
    assert checkpoints_lock.parse_checkpoints_lock(checkpoints_lock.written(records), "checkpoints.lock") == records
    earlier = lock(RECORD).replace(b'"requested":', b'"asked":')
    assert checkpoints_lock.parse_checkpoints_lock(earlier, "checkpoints.lock") == records


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../../outside": {"size": 1}}},
        {"files": {"/etc/passwd": {"size": 1}}},
        {"files": {"..": {"size": 1}}},
        {"files": {".hidden": {"size": 1}}},
        {"files": {"a\nb": {"size": 1}}},
        {"files": {"a": {"size": 1, "digest": "sha256:../../x"}}},
        {"files": {"a": {"size": 1, "more": 1}}},
        {"sources": {"all": {"requested": "x", "files": {"../x": {"size": 1}}}}},
        {"sources": {"all": {"requested": "x", "commit": "../x", "files": {}}}},
        {"sources": {"../all": {"requested": "x", "files": {}}}},
        {"folder": "relative"},
        {"folder": "/a:/etc"},
        {"folder": "~root/x"},
        {"model": "../../etc"},
        {"model": "--option/x"},
        {"mods": ["../x"]},
        {"mods": ["a; rm -rf /"]},
        {"inputs": "../x"},
        {"sequence": True},
        {"more": 1},
    ],
)
def test_a_record_that_leads_elsewhere_is_damaged(change: dict[str, Any]) -> None:
    with pytest.raises(LockError, match=r"^checkpoints\.lock: the file is damaged: "):
        checkpoints_lock.parse_checkpoints_lock(lock({**copy.deepcopy(RECORD), **change}), "checkpoints.lock")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (lock(RECORD, name="../small"), LockError),
        (lock(RECORD, name="Small\n"), LockError),
        (lock(RECORD, revision="../../x"), LockError),
        (lock(RECORD, revision="a" * 39), LockError),
        (lock(RECORD, more=1), LockError),
        (lock(RECORD, version=2), NewerLockError),
        (lock(RECORD)[:-1], LockError),
        (b"[" * 100_000, LockError),
        (b"\xff{}", LockError),
        (b"null", LockError),
        (b"", LockError),
    ],
)
def test_a_file_that_is_no_record_is_damaged(text: bytes, kind: type[LockError]) -> None:
    with pytest.raises(kind):
        checkpoints_lock.parse_checkpoints_lock(text, "checkpoints.lock")


@pytest.mark.parametrize("kind", ["link", "pipe", "large"])
def test_a_lock_that_is_no_plain_file_is_not_read(tmp_path: Path, kind: str) -> None:
    project = projects.make(tmp_path / "project")
    path = project.checkpoints_lock
    if kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with path.open("wb") as file:
            file.truncate(65 << 20)
    with pytest.raises(LockError, match="cannot be read"):
        checkpoints_lock.read_checkpoints_lock(project)


def kitchen(folder: Path, files: dict[str, bytes]) -> Kitchen:
    """A kitchen whose one source is a folder with a file of weights, and ``files``."""
    source = folder / "source"
    safetensors_files.write(source, {"model.safetensors": safetensors_files.encoded({"a": ("BF16", [2])}), **files})
    text = f"description: x\nmodel: {MODEL}\nsources: {{all: {{folder: {source}}}}}\nsteps: [{{take: all}}]\n"
    project = projects.make(folder / "project")
    projects.write(project.root / made.FILE, text)
    return Kitchen(project, folder)


def test_files_that_the_record_cannot_name_are_left_out(tmp_path: Path) -> None:
    odd = dict.fromkeys((".DS_Store", "a\nb.json", "\x1b[31m.txt", "\udcff.txt", "\u202etxt.exe", "x" * 220), b"x")
    cook = kitchen(tmp_path, {**odd, "config.json": b"{}", "ä b.txt": b"x"})
    result = cook.build()
    assert set(made.contents(result.folder)) == {"config.json", "ä b.txt", "model.safetensors", "README.md"}
    assert checkpoints_lock.read_checkpoints_lock(cook.project).current("hybrid") == result.name.revision


def test_weights_of_such_a_name_are_none(tmp_path: Path) -> None:
    cook = kitchen(tmp_path, {".b.safetensors": b"x", "\u202e.safetensors": b"x"})
    assert cook.build().tensors == 1
    (tmp_path / "source/model.safetensors").rename(tmp_path / "source/.a.safetensors")
    with pytest.raises(BuilderError, match="has no safetensors files"):
        cook.build()


def hub_refusal(project: Project, folder: Path, files: dict[str, bytes]) -> str:
    text = f"description: x\nmodel: {MODEL}\nsources: {{all: {{hf: {MODEL}@main}}}}\nsteps: [{{take: all}}]\n"
    projects.write(project.root / made.FILE, text)
    with hub_server.serve() as hub:
        hub.add(MODEL, files)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environ = {**kept, "HOME": str(folder / "home"), "HF_ENDPOINT": hub.url}
        with pytest.raises(BuilderError) as refused:
            checkpoints.plan_checkpoint(workspace(project, NO_ENGINE, environ), "hybrid")
    assert not (folder / "home").exists()
    return refused.value.message


@pytest.mark.slow
@pytest.mark.parametrize("name", ["../../evil.safetensors", "a/../../evil.safetensors"])
def test_a_hub_that_lists_names_that_lead_elsewhere(tmp_path: Path, name: str) -> None:
    files = {name: safetensors_files.encoded({"a": ("BF16", [2])})}
    assert "lists a file with an unsafe name" in hub_refusal(projects.make(tmp_path / "p"), tmp_path, files)


@pytest.mark.parametrize("name", ["../evil.safetensors", "/evil.safetensors", "\x1b.safetensors", "evil.bin"])
def test_an_index_of_the_hub_that_leads_elsewhere(tmp_path: Path, name: str) -> None:
    index = json.dumps({"metadata": {}, "weight_map": {"a": name}}).encode()
    files = {
        "model.safetensors": safetensors_files.encoded({"a": ("BF16", [2])}),
        "model.safetensors.index.json": index,
    }
    message = hub_refusal(projects.make(tmp_path / "p"), tmp_path, files)
    assert "its weight_map has an entry that is not a weights file" in message
    assert message.isprintable()


def test_links_that_came_with_the_place_of_the_results_are_not_followed(tmp_path: Path) -> None:
    cook = kitchen(tmp_path, {"config.json": b"{}"})
    definition = cook.project.root / made.FILE
    definition.write_text(f"{definition.read_text()}output: {{folder: ./out}}\n")
    plan = checkpoints.plan_checkpoint(cook.workspace(), "hybrid").plan
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "config.json").write_text("theirs")
    work = cook.project.root / f"out/hybrid/.unfinished-{plan.inputs[:16]}"
    work.parent.mkdir(parents=True)
    work.symlink_to(elsewhere)
    first = cook.build()
    assert made.contents(elsewhere) == {"config.json": b"theirs"}
    # The same with a folder, and the links in it.
    cook.project.checkpoints_lock.unlink()
    first.folder.rename(tmp_path / "before")
    work.mkdir()
    (work / "model.safetensors.part").symlink_to(elsewhere / "config.json")
    assert cook.build().name == first.name
    assert made.contents(elsewhere) == {"config.json": b"theirs"}


def test_a_journal_that_came_with_the_place_of_the_results_names_only_files_of_the_plan(tmp_path: Path) -> None:
    cook = kitchen(tmp_path, {"config.json": b"{}"})
    inputs = checkpoints.plan_checkpoint(cook.workspace(), "hybrid").plan.inputs
    mine = tmp_path / "mine"
    mine.write_text("mine")
    journal = cook.cache / f".unfinished-{inputs[:16]}.journal"
    name = os.path.relpath(mine, journal.with_suffix(""))
    projects.write(journal, json.dumps({name: [4, f"sha256:{hashlib.sha256(b'mine').hexdigest()}", None]}))
    assert sorted(made.contents(cook.build().folder)) == ["README.md", "config.json", "model.safetensors"]
    assert mine.read_text() == "mine"

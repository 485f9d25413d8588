"""The files of a project held against those of a release: what is written, and what never is without a word."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import UnsafePathError
from builder.base.project import Project
from builder.moving import shipped
from builder.moving.shipped import InitRecord, ShippedFile
from tests.projects import write

if TYPE_CHECKING:
    from pathlib import Path


OLD, NEW, OWN = b"one\n", b"two\n", b"mine\n"
PATH = "mods/m/run.sh"


def state(root: Path, here: bytes | None, written: bytes | None, comes: bytes = NEW, path: str = PATH) -> str:
    if here is not None:
        write(root / path, here.decode())
    digests = {} if written is None else {path: shipped.digest(written)}
    recorded = InitRecord("0", "all", digests)
    (planned,) = shipped.plan_shipped(Project(root), {path: ShippedFile(path, comes)}, recorded)
    return planned.state


@pytest.mark.parametrize(
    ("here", "written", "expected"),
    [
        (None, None, "new"),
        (None, OLD, "deleted"),
        (NEW, None, "same"),
        (NEW, OLD, "same"),
        (OLD, OLD, "newer"),
        (OWN, OLD, "edited"),
        (OWN, None, "edited"),
        (OWN, NEW, "kept"),
    ],
)
def test_the_state_of_a_file(tmp_path: Path, here: bytes | None, written: bytes | None, expected: str) -> None:
    assert state(tmp_path, here, written) == expected


def test_a_mod_that_was_deleted_gets_no_new_file(tmp_path: Path) -> None:
    recorded = InitRecord("0", "all", {PATH: shipped.digest(OLD)})
    files = {path: ShippedFile(path, NEW) for path in (PATH, "mods/m/new.txt", "mods/other/run.sh")}
    states = {each.path: each.state for each in shipped.plan_shipped(Project(tmp_path), files, recorded)}
    assert states == {PATH: "deleted", "mods/m/new.txt": "deleted", "mods/other/run.sh": "new"}


@pytest.mark.parametrize("recorded", [None, InitRecord("0", "all", {PATH: shipped.digest(OLD)})])
def test_a_mod_that_somebody_brought_gets_no_file_of_ours(tmp_path: Path, recorded: InitRecord | None) -> None:
    write(tmp_path / PATH, OWN.decode())
    files = {path: ShippedFile(path, NEW) for path in (PATH, "mods/m/new.txt", "mods/other/run.sh")}
    states = {each.path: each.state for each in shipped.plan_shipped(Project(tmp_path), files, recorded)}
    assert states == {PATH: "edited", "mods/m/new.txt": "deleted", "mods/other/run.sh": "new"}


def test_lines_are_added_to_a_file_of_the_users(tmp_path: Path) -> None:
    write(tmp_path / ".gitignore", "/mine\n/.builder/\n")
    files = {".gitignore": ShippedFile(".gitignore", b"/.builder/\n/images.lock.damaged\n")}
    planned = shipped.plan_shipped(Project(tmp_path), files, None)
    assert [each.state for each in planned] == ["newer"]
    shipped.write_shipped(Project(tmp_path), planned)
    assert (tmp_path / ".gitignore").read_text() == "/mine\n/.builder/\n/images.lock.damaged\n"
    assert [each.state for each in shipped.plan_shipped(Project(tmp_path), files, None)] == ["same"]


def test_the_execute_bit_is_part_of_a_file(tmp_path: Path) -> None:
    files = {"scripts/engine": ShippedFile("scripts/engine", NEW, executable=True)}
    shipped.write_shipped(Project(tmp_path), shipped.plan_shipped(Project(tmp_path), files, None))
    assert (tmp_path / "scripts/engine").stat().st_mode & 0o111 == 0o111


def test_nothing_is_read_or_written_through_a_link_that_leads_out(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "project/mods").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafePathError):
        shipped.plan_shipped(Project(tmp_path / "project"), {PATH: ShippedFile(PATH, NEW)}, None)
    assert not list((tmp_path / "elsewhere").iterdir())


MOD = "mods/fix-qwen3.5-enhanced-chat-template"


@pytest.mark.parametrize(
    ("recorded", "here", "expected"),
    [
        ({PATH: OLD}, {PATH: OLD}, True),
        ({PATH: OLD}, {PATH: OWN}, False),
        ({PATH: OLD}, {PATH: OLD, "mods/m/own.txt": OWN}, False),
        ({PATH: OLD, "mods/m/deleted.txt": OLD}, {PATH: OLD}, False),
        ({PATH: OLD, "mods/m2/run.sh": OLD}, {PATH: OLD}, True),
        (None, {PATH: OLD}, False),
    ],
)
def test_what_init_wrote_is_unedited_while_it_is_all_of_it_and_the_same(
    tmp_path: Path, recorded: dict[str, bytes] | None, here: dict[str, bytes], expected: bool
) -> None:
    project = Project(tmp_path)
    if recorded is not None:
        digests = {path: shipped.digest(content) for path, content in recorded.items()}
        shipped.write_shipped_record(project, InitRecord("0", "all", digests))
    assert shipped.is_unedited(project, "mods/m", here) is expected


def test_what_this_release_ships_is_unedited_without_a_record(tmp_path: Path) -> None:
    project = Project(tmp_path)
    files = {file.path: file.content for file in shipped.below_package(shipped.shipped_project().root, MOD)}
    assert shipped.is_unedited(project, MOD, files)
    assert not shipped.is_unedited(project, MOD, files | {f"{MOD}/run.sh": OWN})
    recipe = "recipes/qwen3-0.6b-cpu.yaml"
    assert shipped.is_unedited(project, recipe, {recipe: (shipped.shipped_project().root / recipe).read_bytes()})


def test_a_checkout_of_this_program_ships_whatever_is_in_it() -> None:
    clone = Project(shipped.shipped_project().root)
    files = {file.path: file.content for file in shipped.below_package(clone.root, MOD)}
    assert not shipped.is_unedited(clone, MOD, files)

"""The files of a project held against those of a release: what is written, and what never is without a word."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, get_args

import pytest

from builder.base.errors import FileProblemsError, UnsafePathError
from builder.base.project import Project
from builder.base.words import sha256_of
from builder.definitions import image, recipe
from builder.definitions.mod import PlainFile, mod_names
from builder.lock import layout, lock_file
from builder.moving import shipped
from builder.moving.shipped import Contents, InitRecord
from tests.projects import REPOSITORY_ROOT, write

if TYPE_CHECKING:
    from pathlib import Path


OLD, NEW, OWN = b"one\n", b"two\n", b"mine\n"
PATH = "mods/m/run.sh"


def state(root: Path, here: bytes | None, written: bytes | None, comes: bytes = NEW, path: str = PATH) -> str:
    if here is not None:
        write(root / path, here.decode())
    digests = {} if written is None else {path: sha256_of(written)}
    recorded = InitRecord("0", "all", digests)
    (planned,) = shipped.plan_shipped(Project(root), {path: PlainFile(path, False, comes)}, recorded)
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
    recorded = InitRecord("0", "all", {PATH: sha256_of(OLD)})
    files = {path: PlainFile(path, False, NEW) for path in (PATH, "mods/m/new.txt", "mods/other/run.sh")}
    states = {each.path: each.state for each in shipped.plan_shipped(Project(tmp_path), files, recorded)}
    assert states == {PATH: "deleted", "mods/m/new.txt": "deleted", "mods/other/run.sh": "new"}


@pytest.mark.parametrize("recorded", [None, InitRecord("0", "all", {PATH: sha256_of(OLD)})])
def test_a_mod_that_somebody_brought_gets_no_file_of_ours(tmp_path: Path, recorded: InitRecord | None) -> None:
    write(tmp_path / PATH, OWN.decode())
    files = {path: PlainFile(path, False, NEW) for path in (PATH, "mods/m/new.txt", "mods/other/run.sh")}
    states = {each.path: each.state for each in shipped.plan_shipped(Project(tmp_path), files, recorded)}
    assert states == {PATH: "edited", "mods/m/new.txt": "deleted", "mods/other/run.sh": "new"}


def test_lines_are_added_to_a_file_of_the_users(tmp_path: Path) -> None:
    write(tmp_path / ".gitignore", "/mine\n/.builder/\n")
    files = {".gitignore": PlainFile(".gitignore", False, b"/.builder/\n/images.lock.damaged\n")}
    planned = shipped.plan_shipped(Project(tmp_path), files, None)
    assert [each.state for each in planned] == ["newer"]
    shipped.write_shipped(Project(tmp_path), planned)
    assert (tmp_path / ".gitignore").read_text() == "/mine\n/.builder/\n/images.lock.damaged\n"
    assert [each.state for each in shipped.plan_shipped(Project(tmp_path), files, None)] == ["same"]


def test_the_execute_bit_is_part_of_a_file(tmp_path: Path) -> None:
    for executable, bits in ((True, 0o111), (False, 0)):
        files = {"scripts/engine": PlainFile("scripts/engine", executable, NEW)}
        shipped.write_shipped(Project(tmp_path), shipped.plan_shipped(Project(tmp_path), files, None))
        assert (tmp_path / "scripts/engine").stat().st_mode & 0o111 == bits
        assert [each.state for each in shipped.plan_shipped(Project(tmp_path), files, None)] == ["same"]


def test_nothing_is_read_or_written_through_a_link_that_leads_out(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "project/mods").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafePathError):
        shipped.plan_shipped(Project(tmp_path / "project"), {PATH: PlainFile(PATH, False, NEW)}, None)
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
        digests = {path: sha256_of(content) for path, content in recorded.items()}
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


# The record of what `init` wrote.

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


# The files that a project gets, by what it is for.

SHIPPED = shipped.shipped_project()


def test_all_is_everything_that_comes_with_the_program() -> None:
    every = shipped.select("all")
    assert every.definitions == image.definition_names(SHIPPED)
    assert every.mods == mod_names(SHIPPED)
    assert {recipe.name_of(file) for file in every.recipes} == set(recipe.recipe_names(SHIPPED))
    assert every.pins.pins == lock_file.read_lock(SHIPPED.lock).pins


def test_the_cpu_and_the_spark_share_no_definition_and_have_all_of_them_together() -> None:
    cpu, spark = shipped.select("cpu"), shipped.select("spark")
    assert not set(cpu.definitions) & set(spark.definitions)
    assert {*cpu.definitions, *spark.definitions} == set(image.definition_names(SHIPPED))
    assert "cpu" in cpu.definitions
    assert "node" in spark.definitions


@pytest.mark.parametrize("contents", get_args(shipped.Contents))
def test_a_selection_has_all_that_its_recipes_and_definitions_name(contents: Contents) -> None:
    selected = shipped.select(contents)
    assert "dockerfiles/_parts/bake-mod.sh" in selected.files
    for name in selected.definitions:
        definition = image.load_image(SHIPPED, name, "linux/arm64")
        assert definition.parent is None or definition.parent in selected.definitions
        assert set(definition.mods) <= set(selected.mods)
    for mod in selected.mods:
        assert any(path.startswith(f"mods/{mod}/") for path in selected.files)


def test_minimal_has_neither_definitions_nor_recipes() -> None:
    selected = shipped.select("minimal")
    assert (selected.definitions, selected.mods, selected.recipes) == ((), (), ())
    assert not any(path.startswith(("mods/", "recipes/", "scripts/")) for path in selected.files)


def test_images_that_were_built_in_the_checkout_stay_there() -> None:
    selected = shipped.select("all").pins
    assert selected.models == {}
    assert not any(repository.numbers for repository in selected.images.values())


def test_packages_come_with_the_pins_that_they_belong_to() -> None:
    """images.lock has their digests: a file that came without it would be one that nothing pins."""
    selected = shipped.select("all")
    named = {file.path for file in layout.packages_files(selected.pins)}
    assert all((SHIPPED.root / path).is_file() for path in named)
    assert not named & set(selected.files)


def test_what_takes_least_comes_first() -> None:
    assert shipped.select("spark").recipes[0] == "recipes/qwen3.5-122b-node.yaml"


def test_git_treats_a_project_as_it_does_this_repository() -> None:
    own = (REPOSITORY_ROOT / ".gitattributes").read_bytes().splitlines()
    assert set(shipped.select("minimal").files[".gitattributes"].content.splitlines()) <= set(own)

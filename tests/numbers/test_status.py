"""The image that a name stands for, and the numbers as they are told where no engine answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from builder.base.errors import UsageError
from builder.base.project import Project
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock, Pairing
from builder.numbers import status
from tests import locks, projects
from tests.conftest import WITHOUT_ENGINE, run_command
from tests.workspaces import NO_ENGINE, workspace


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Numbers 1 and 2 of ``small``, the second one current, and the model of ``chat`` on the first."""
    project = projects.make(tmp_path)
    locks.write(project, (1, 2), current=2, paired=1)
    projects.add_recipe(tmp_path, "other", "small", "Org/Other", [])
    projects.add_recipe(tmp_path, "first", "small:1", "Org/Other", [])
    projects.add_recipe(tmp_path, "elsewhere", "none", "Org/Other", [])
    return project


@pytest.mark.parametrize(
    ("text", "number"),
    [("small", 2), ("small:latest", 2), ("small:1", 1), (locks.MODEL, 1), ("chat", 1), ("other", 2), ("first", 1)],
)
def test_what_a_name_stands_for(project: Project, text: str, number: int) -> None:
    name, record = status.named_number(project, lock_file.read_lock(project.lock), text)
    assert (name, record) == (ImageName("small", number), locks.numbered())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("small:3", "small has no number 3"),
        ("small:x", "small has no number x"),
        ("small:²", "small has no number ²"),
        (f"small:{'1' * 5000}", f"small has no number {'1' * 20}$"),
        ("elsewhere", "no image `elsewhere`"),
        ("Org/Other", "no image `Org/Other`"),
        ("nothing:1", "no image `nothing:1`"),
    ],
)
def test_what_stands_for_no_image_is_refused(project: Project, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        status.named_number(project, lock_file.read_lock(project.lock), text)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("list chat", 0),
        ("mark chat good", 0),
        ("keep chat", 0),
        ("rollback first --to 1 --dry-run", 5),
        ("rollback elsewhere", 1),
        ("pair Org/New small:1", 5),
    ],
)
def test_a_definition_that_cannot_be_read_hinders_no_recipe_and_no_model(
    project: Project, command: str, code: int
) -> None:
    """The way back must not depend on a file that is just being edited."""
    projects.write(project.dockerfiles / "broken/image.yaml", "repository: [")
    printed = run_command(project, *command.split(), code=code, environ=WITHOUT_ENGINE)
    assert "dockerfiles/broken" not in printed.stderr
    assert "dockerfiles/broken" in run_command(project, "list", "other-name", code=2, environ=WITHOUT_ENGINE).stderr


@pytest.mark.parametrize("text", ["small", "small:1"])
def test_a_definition_that_was_never_built_is_to_be_built(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=f"images.lock has no image `{text}`") as caught:
        status.named_number(projects.make(tmp_path), Lock(), text)
    assert caught.value.hint.startswith("`builder build small` builds the first one; ")


@pytest.mark.parametrize("text", ["small", "small:latest"])
def test_a_repository_without_a_current_number_says_so(project: Project, text: str) -> None:
    lock = lock_file.read_lock(project.lock)
    without = lock.with_repository("small", replace(lock.images["small"], current=None))
    with pytest.raises(UsageError, match="small has no current number") as caught:
        status.named_number(project, without, text)
    assert caught.value.hint == "its numbers: 2, 1"


@pytest.mark.parametrize(
    ("count", "shown"), [(10, "10, 9, 8, 7, 6, 5, 4, 3, 2, 1"), (11, "11, 10, 9, 8, 7, 6, 5, 4, 3, 2 …")]
)
def test_the_latest_ten_numbers_are_shown(project: Project, count: int, shown: str) -> None:
    locks.write(project, tuple(range(1, count + 1)), current=1)
    with pytest.raises(UsageError) as caught:
        status.named_number(project, lock_file.read_lock(project.lock), "small:99")
    assert caught.value.hint == f"its numbers: {shown}"


def test_a_model_and_a_recipe_are_found_by_name_unless_a_repository_has_it(project: Project) -> None:
    lock = lock_file.read_lock(project.lock)
    assert [status.named_model(project, lock, text) for text in (locks.MODEL, "chat", "other", "nothing")] == [
        locks.MODEL,
        locks.MODEL,
        None,
        None,
    ]
    found = status.named_recipe(project, lock, "chat")
    assert found
    assert found.model == locks.MODEL
    projects.add_recipe(project.root, "small", "small", "Org/Other", [])
    assert status.named_recipe(project, lock, "small") is None
    assert status.named_repository(project, lock, "nothing") is None


def test_a_repository_of_a_definition_is_known_before_it_has_a_number(tmp_path: Path) -> None:
    project = projects.make(tmp_path, "vllm-small")
    lock = lock_file.read_project_lock(project)
    assert status.named_repository(project, lock, "small") == "vllm-small"
    assert status.named_repository(project, lock, "vllm-small") == "vllm-small"
    for text in ("small", "small:1"):
        with pytest.raises(UsageError, match=f"images.lock has no image `{text}`"):
            status.named_number(project, lock, text)


def test_without_an_engine_the_numbers_are_listed_and_their_states_unknown(project: Project) -> None:
    done = run_command(project, "list", "--json", environ=WITHOUT_ENGINE)
    rows = json.loads(done.stdout)["images"]
    assert [(row["image"], row["state"], row["current"], row["models"]) for row in rows] == [
        ("small:2", "unknown", True, []),
        ("small:1", "unknown", False, [locks.MODEL]),
    ]
    assert "the engine does not answer" in run_command(project, "list", environ=WITHOUT_ENGINE).stderr


def test_numbers_are_listed_by_repository_the_latest_first_with_their_models_in_order(project: Project) -> None:
    lock = Lock()
    for repository, number in (("small", 2), ("large", 1), ("small", 10)):
        lock = lock.with_image(ImageName(repository, number), locks.numbered())
    for model in ("Org/B", "Org/A"):
        lock = lock.with_pairing(model, Pairing(ImageName("small", 2)))
    overview = status.status_overview(workspace(project, NO_ENGINE), lock)
    assert [(str(row.name), row.models, row.current) for row in overview.rows] == [
        ("large:1", (), False),
        ("small:10", (), False),
        ("small:2", ("Org/A", "Org/B"), False),
    ]
    assert not any(row.only_here for row in overview.rows)
    assert (overview.stray, overview.foreign, overview.upstream.at) == ({}, {}, "")

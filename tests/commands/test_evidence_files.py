"""Runs that people give each other: ``builder evidence export`` and ``import``."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.commands import evidence_export, evidence_import
from builder.errors import BuilderError, ConflictError, FileProblemsError, NothingToDoError, UsageError
from builder.evidence import overview, requirements, store
from builder.lock import reading, text
from builder.lock.model import ImageName
from tests import projects
from tests.evidence.runs import MODEL, proof
from tests.reporting import stocked

if TYPE_CHECKING:
    from pathlib import Path

    from builder.project import Project


@pytest.fixture
def mine(tmp_path: Path) -> Project:
    return stocked.fill(stocked.make(tmp_path / "mine"))


@pytest.fixture
def theirs(tmp_path: Path) -> Project:
    """A project in which number 2 is called 7, and 3 is not there."""
    project = stocked.make(tmp_path / "theirs")
    lock = reading.read(project.lock)
    first, second = (lock.images["small"].numbers[number] for number in (1, 2))
    renumbered = replace(lock.images["small"], next=8, current=7, previous=(1,), numbers={1: first, 7: second})
    lock = replace(lock, images={"small": renumbered}, models={})
    projects.write(project.lock, text.dump(lock))
    return project


def test_runs_find_the_image_of_the_same_content(mine: Project, theirs: Project, tmp_path: Path) -> None:
    shared = evidence_export.run(mine, (), tmp_path / "runs.json")
    assert [(each.image, len(each.runs)) for each in shared] == [("small:1", 2), ("small:2", 2), ("small:3", 2)]
    taken = evidence_import.run(theirs, tmp_path / "runs.json", "a friend")
    assert [(each.theirs, str(each.image), each.count, each.new) for each in taken] == [
        ("small:1", "small:1", 2, 2),
        ("small:2", "small:7", 2, 2),
        ("small:3", "None", 2, 0),
    ]
    runs = store.of_image(theirs, ImageName("small", 7))
    assert {run.foreign for run in runs} == {"a friend"}
    again = evidence_import.run(theirs, tmp_path / "runs.json", "another")
    assert sum(each.new for each in again) == 0


def test_what_others_ran_proves_nothing(mine: Project, theirs: Project, tmp_path: Path) -> None:
    evidence_export.run(mine, ("small:2",), tmp_path / "runs.json")
    evidence_import.run(theirs, tmp_path / "runs.json")
    name = ImageName("small", 7)
    lock = reading.read(theirs.lock)
    (pairing,) = overview.of(theirs, lock, [name], {}, lambda *_: None)[name].pairings
    assert (pairing.standing, pairing.why, pairing.has_foreign) == ("unproven", "proven elsewhere", True)
    projects.write(theirs.root / "builder.yaml", "requires: {prove: pass}\n")
    assert [each.kind for each in requirements.missing(theirs, lock, name, MODEL)] == ["prove"]


def test_a_run_of_others_is_not_sent_on(mine: Project, tmp_path: Path) -> None:
    shared = evidence_export.run(mine, ("small:2",), tmp_path / "runs.json")
    assert [run.name for each in shared for run in each.runs] == ["behaviour", "quick"]
    assert "community" not in (tmp_path / "runs.json").read_text()


def test_own_runs_that_come_back_stay_own(mine: Project, tmp_path: Path) -> None:
    evidence_export.run(mine, (), tmp_path / "runs.json")
    evidence_import.run(mine, tmp_path / "runs.json", "somewhere")
    assert not any(run.foreign == "somewhere" for name in stocked.NAMES for run in store.of_image(mine, name))


def test_the_same_runs_give_the_same_bytes(mine: Project, tmp_path: Path) -> None:
    for file in ("a.json", "b.json"):
        evidence_export.run(mine, (), tmp_path / file)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def edited(path: Path, change: Any) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def lie_about_a_verdict(data: Any) -> None:
    runs = data["images"][2]["runs"]
    name = next(name for name in runs if "-prove-" in name)
    runs[name] = runs[name].replace('"fail"', '"pass"')


def lead_elsewhere(data: Any) -> None:
    runs = data["images"][0]["runs"]
    runs["../../images.lock"] = runs.pop(next(iter(runs)))


def of_another_image(data: Any) -> None:
    data["images"][0]["fingerprint"] = data["images"][1]["fingerprint"]


@pytest.mark.parametrize("change", [lie_about_a_verdict, lead_elsewhere, of_another_image])
def test_a_file_with_one_wrong_run_is_refused_as_a_whole(
    mine: Project, theirs: Project, tmp_path: Path, change: Any
) -> None:
    evidence_export.run(mine, (), tmp_path / "runs.json")
    edited(tmp_path / "runs.json", change)
    with pytest.raises(FileProblemsError):
        evidence_import.run(theirs, tmp_path / "runs.json")
    assert store.images(theirs) == ()


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"kind": "builder evidence", "format": 2, "images": []}', "[" * 100_000,
     '{"kind": "builder evidence", "format": 1, "images": [{"image": "../x:1", "fingerprint": "a", "runs": {}}]}'],
)  # fmt: skip
def test_what_is_no_such_file_is_refused(theirs: Project, tmp_path: Path, content: str) -> None:
    (tmp_path / "runs.json").write_text(content)
    with pytest.raises(FileProblemsError):
        evidence_import.run(theirs, tmp_path / "runs.json")


def test_mistakes_of_the_command(mine: Project, theirs: Project, tmp_path: Path) -> None:
    cases: tuple[tuple[type[BuilderError], Project, tuple[str, ...]], ...] = (
        (NothingToDoError, theirs, ()),
        (UsageError, mine, ("small:9",)),
    )
    for error, project, images in cases:
        with pytest.raises(error):
            evidence_export.run(project, images, tmp_path / "new.json")
    (tmp_path / "there.json").write_text("")
    with pytest.raises(ConflictError):
        evidence_export.run(mine, (), tmp_path / "there.json")
    with pytest.raises(FileProblemsError):
        evidence_import.run(mine, tmp_path / "missing.json")


def test_an_image_that_was_renumbered_has_what_is_its_own(mine: Project, tmp_path: Path) -> None:
    """Runs in the folder of a number that belong to other content stay behind."""
    stray = replace(proof(), subject=replace(proof().subject, fingerprint="sha256:other"))
    store.add(mine, ImageName("small", 1), stray)
    shared = evidence_export.run(mine, ("small:1",), tmp_path / "runs.json")
    assert len(shared[0].runs) == 2

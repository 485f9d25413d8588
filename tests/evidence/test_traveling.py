"""Runs that came from others: checked, marked as theirs, and never taken for the project's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.base.errors import FileProblemsError
from builder.base.project import Project
from builder.evidence import store
from tests.evidence.runs import NAME, SUBJECT, bench, proof


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "dockerfiles").mkdir()
    return Project(tmp_path)


def sent(*runs: object) -> object:
    return store.traveling_files(runs)  # type: ignore[arg-type]


def test_runs_are_those_of_others_on_the_other_side(project: Project, tmp_path: Path) -> None:
    store.add_run(project, NAME, proof())
    store.add_run(project, NAME, bench(foreign="archive first.tar"))
    runs, problems = store.traveling_runs(project, NAME, SUBJECT.fingerprint)
    assert problems == ()
    far = Project(tmp_path / "far")
    received = store.read_foreign_runs(store.traveling_files(runs), SUBJECT.fingerprint, "file.tar")
    assert store.take(far, NAME, received, "archive second.tar") == 2
    assert [run.foreign for run in store.of_image(far, NAME)] == [
        "archive second.tar",
        "archive second.tar, before: archive first.tar",
    ]
    assert store.take(far, NAME, received, "archive third.tar") == 0
    assert store.take(project, NAME, received, "archive second.tar") == 0
    assert store.of_image(project, NAME)[0].foreign == ""


def test_only_the_runs_of_this_content_go_along(project: Project) -> None:
    store.add_run(project, NAME, proof())
    damaged = store.add_run(project, NAME, bench())
    damaged.write_text("{}")
    assert store.traveling_runs(project, NAME, "sha256:9")[0] == ()
    runs, problems = store.traveling_runs(project, NAME, SUBJECT.fingerprint)
    assert (len(runs), {problem.location.file for problem in problems}) == (1, {str(damaged.relative_to(project.root))})


def test_a_long_way_is_cut(project: Project) -> None:
    store.take(project, NAME, [proof(foreign="x" * 900)], "archive y.tar")
    (run,) = store.of_image(project, NAME)
    assert run.foreign.startswith("archive y.tar, before: xxx")
    assert len(run.foreign) <= 500


NAMED = store.file_name(proof())
TEXT = store.traveling_files([proof()])[NAMED]


@pytest.mark.parametrize(
    "texts",
    [
        None,
        [],
        "{}",
        {NAMED: None},
        {NAMED: {}},
        {NAMED: "{}"},
        {NAMED: "\ud800"},
        {f"../{NAMED}": TEXT},
        {f"a/{NAMED}": TEXT},
        {"..": TEXT},
        {"": TEXT},
        {NAMED.replace("behaviour", "other"): TEXT},
        {NAMED: TEXT.replace('"pass"', '"fail"')},
        {NAMED: TEXT.replace("61.5", "1e400")},
        {NAMED: TEXT + " " * store.LARGEST},
        {f"{n}": TEXT for n in range(store.MOST_RUNS + 1)},
    ],
)
def test_anything_else_is_refused(texts: object) -> None:
    with pytest.raises(FileProblemsError):
        store.read_foreign_runs(texts, SUBJECT.fingerprint, "file.tar")


def test_evidence_of_another_image_is_refused() -> None:
    with pytest.raises(FileProblemsError, match="another image"):
        store.read_foreign_runs({NAMED: TEXT}, "sha256:9", "file.tar")


def test_what_it_says_of_itself_makes_it_nobodys_own(project: Project) -> None:
    (received,) = store.read_foreign_runs({NAMED: TEXT}, SUBJECT.fingerprint, "file.tar")
    assert received.foreign == ""
    store.take(project, NAME, [received], "archive z.tar")
    assert store.of_image(project, NAME)[0].foreign == "archive z.tar"

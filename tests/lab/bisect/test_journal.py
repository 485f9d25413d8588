"""The journal of a bisection: what it keeps, and what somebody else may have written into it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.base.errors import ConflictError
from builder.base.project import Project
from builder.lab.bisect import search
from builder.lab.bisect.search import Bisection, Judge, Row, Trial
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path


COMMIT = "c" * 40
BEGUN = Bisection(
    "chat", "vllm-node", (1, 2), Judge("script", "/home/me/judge.sh"), "2026-11-20T22:00:00Z",
    served=True,
    done=(Trial(search.mixed(1, 2, frozenset({"vllm"}), ("vllm", COMMIT)), failed=1, note="x"),),
    rows=(Row("vllm", "", "", (COMMIT, "5.20.0+cpu")),),
)  # fmt: skip


def journal_text(project: Project) -> str:
    """The journal as it is written, which this leaves in the project."""
    project.bisecting.mkdir(parents=True, exist_ok=True)
    search.write_bisection(project, BEGUN)
    return (project.bisecting / "journal.json").read_text()


def written(project: Project, **planted: object) -> dict[str, Any]:
    text = json.loads(journal_text(project)) | planted
    projects.write(project.bisecting / "journal.json", json.dumps(text))
    return dict(text)


def test_it_gives_back_names_and_verdicts_and_nothing_that_runs(tmp_path: Path) -> None:
    project = Project(tmp_path)
    text = journal_text(project)
    read = search.journal_of(project).read()
    assert read == replace(BEGUN, judge=BEGUN.judge.recorded)
    assert not [word for word in ("judge.sh", "/home", "recipes/", "name: chat") if word in text]
    assert search.journal_of(Project(tmp_path / "other")).read() is None


PLANTED: list[dict[str, object]] = [
    {"judge": {"kind": "script", "name": "/tmp/evil"}},
    {"judge": {"kind": "shell", "name": ""}},
    {"recipe": "/tmp/evil.yaml"},
    {"recipe_before": "volumes: ['/:/host']"},
    {"served": {"builder.serve.asked": '{"container": {"volumes": ["/:/host"]}}'}},
    {"platform": "linux/amd64"},
    {"repository": "../elsewhere"},
    {"numbers": [1]},
    {"numbers": [True, 2]},
    {"rows": [{"unit": "vllm", "after": "", "before": "", "points": ["$(id)"]}]},
    {"rows": [{"unit": "vllm", "after": "", "before": "", "points": ["-x"]}]},
    {"waiting": {"old": 1, "new": 2, "taken": ["vllm"], "point": ["vllm", "main\nRUN id"]}},
    {"format": 2},
]  # fmt: skip


@pytest.mark.parametrize("planted", PLANTED, ids=[str(sorted(each.items()))[:60] for each in PLANTED])
def test_a_journal_that_says_more_is_refused(tmp_path: Path, planted: dict[str, object]) -> None:
    project = Project(tmp_path)
    written(project)
    assert search.journal_of(project).read()
    written(project, **planted)
    with pytest.raises(ConflictError, match="not a journal of a bisection"):
        search.journal_of(project).read()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    projects.write(tmp_path / "elsewhere.json", journal_text(project))
    (project.bisecting / "journal.json").unlink()
    (project.bisecting / "journal.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(ConflictError, match="not a journal of a bisection"):
        search.journal_of(project).read()

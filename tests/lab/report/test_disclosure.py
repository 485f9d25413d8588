"""The page without --full: nothing of the owner's machines or hand is in it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.events import ignore
from builder.commands import listing
from builder.lab import report
from builder.lab.report import Disclosure, Part
from builder.lock import lock_file, text
from builder.lock.model import Model, Pairing
from tests import projects
from tests.evidence.runs import MODEL, proof
from tests.lab.report import stocked

if TYPE_CHECKING:
    from pathlib import Path

    from builder.base.project import Project


FOLDER = "/srv/bob's models/secret-llama"
SECRETS = ("alert(1)", "recipes/", "evidence/small", "archive", "/srv", "spark-3", "froze", "it is meant")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Notes at each place that has one, a model in a folder, a repository with a host, and damaged files."""
    made = stocked.fill(stocked.make(tmp_path))
    lock = lock_file.read_lock(made.lock)
    numbers = {3: stocked.image(3), 4: stocked.image(4, note="spark-3 made it")}
    elsewhere = replace(lock.images["small"], next=5, current=4, previous=(), numbers=numbers)
    lock = replace(lock, images={**lock.images, "spark-3.lan:5000/team/vllm-node": elsewhere})
    known = lock.models[MODEL]
    back = replace(known.previous[0], note="put back on small:2 2026-11-20: spark-3 froze")
    lock = lock.with_model(MODEL, replace(known, previous=(back, *known.previous[1:])))
    marked = replace(known.pairing, note="spark-3 has it", status="bad", image=stocked.NAMES[0])
    served = Pairing(replace(stocked.NAMES[0], repository="spark-3.lan:5000/team/vllm-node", number=4))
    lock = lock.with_model(FOLDER, Model(served, (marked,)))
    projects.write(made.lock, text.dump_lock(lock))
    stocked.add(made, stocked.NAMES[1], proof("pass", accepted="it is meant, says spark-3"))
    projects.write(made.evidence / "small/3/20261120T220000Z-prove-behaviour-00000000.json", "{}")
    projects.write(made.builds / "small/2/bake.json", "{")
    projects.write(made.root / "builder.yaml", "requires: {probe: [tools-long]}\n")
    return made


def page_of(project: Project, *, full: bool = False) -> Part:
    return report.collect_page(project, {}, ignore, listing.present_evidence, full=full)


@pytest.mark.slow
def test_notes_paths_and_machines_are_left_out(project: Project) -> None:
    page = page_of(project)
    for shown in (report.render_page(page), listing.page_as_json(page)):
        for secret in (*SECRETS, str(project.root)):
            assert secret not in shown.replace("<code>evidence/</code>", ""), secret
        assert MODEL in shown
        assert "secret-llama" in shown
        assert "team/vllm-node:4" in shown
    assert "left out" in report.render_page(page)


@pytest.mark.slow
def test_a_full_page_has_them(project: Project) -> None:
    page = page_of(project, full=True)
    shown = listing.page_as_json(page)
    for secret in ("alert(1)", "evidence/small", FOLDER, "spark-3.lan:5000/team/vllm-node:4"):
        assert secret in shown, secret
    quoted = "'/srv/bob'\"'\"'s models/secret-llama'"
    assert f"builder prove spark-3.lan:5000/team/vllm-node:4 {quoted}" in {each.command for each in page.concerns}
    for note in ("spark-3 froze", "it is meant", "spark-3 made it", "spark-3 has it"):
        assert note in shown, note
    assert json.loads(shown)["full"] is True
    assert "left out" not in report.render_page(page)


@pytest.mark.slow
def test_both_have_the_same_concerns_and_only_commands_that_can_be_typed(project: Project) -> None:
    for damaged in (project.evidence / "small/3").glob("*-00000000.json"):
        damaged.unlink()  # a full page has each of its problems
    short, full = page_of(project).concerns, page_of(project, full=True).concerns
    assert [each.concern for each in short] == [each.concern for each in full]
    assert all(each.text for each in short)
    for mine, whole in zip(short, full, strict=True):
        assert mine.command in {whole.command, ""}
        assert bool(mine.command) == bool(whole.command) or (mine.subject, mine.image) != (whole.subject, whole.image)


@pytest.mark.slow
def test_figures_are_those_of_the_full_page(project: Project) -> None:
    short, full = (
        [run.figures for model in page.models for step in model.history for run in step.runs]
        for page in (page_of(project), page_of(project, full=True))
    )
    assert short == full


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("spark-3.lan:5000/team/vllm-node:7", "team/vllm-node:7"),
        ("localhost/vllm:1", "vllm:1"),
        ("vllm-node-tf5:7", "vllm-node-tf5:7"),
    ],
)
def test_images_lose_hosts(name: str, shown: str) -> None:
    assert Disclosure().name(name) == shown
    assert Disclosure((), [name.rpartition(":")[0]]).name(name) == shown
    assert Disclosure(full=True).name(name) == name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("/srv/models/secret-llama", "secret-llama"),
        ("~/models/m", "m"),
        ("Org/Model-1B", "Org/Model-1B"),
        ("Org.ai/Model-1B", "Org.ai/Model-1B"),
    ],
)
def test_models_lose_folders(name: str, shown: str) -> None:
    assert Disclosure([name]).name(name) == shown
    assert Disclosure([name], full=True).name(name) == name


def test_two_folders_of_one_name_stay_two_models() -> None:
    disclosure = Disclosure(["/a/m", "/b/m", "/c/other"])
    assert [disclosure.name(f"/{folder}") for folder in ("a/m", "b/m", "c/other")] == ["m", "m (2)", "other"]

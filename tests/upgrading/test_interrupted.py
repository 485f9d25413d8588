"""Upgrades that were interrupted, as `list` tells of them; `status` has the same, and needs an engine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.lab.upgrade import upgrade_journal
from builder.lock import text
from builder.lock.model import ImageName, Lock, NumberedImage, Pairing
from tests import json_outputs, projects
from tests.cli.test_main import run
from tests.upgrading.test_steps import START

if TYPE_CHECKING:
    from pathlib import Path

    from builder.base.project import Project


MODEL, IMAGE = "Org/M", ImageName("small", 1)
RECORD = NumberedImage("2026-11-20T22:00:00Z", "small", "linux/amd64", f"sha256:{1:064x}", "h", 1)
LOCK = Lock().with_image(IMAGE, RECORD).with_pairing(MODEL, Pairing(IMAGE, "recipes/chat.yaml"))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = projects.make(tmp_path)
    made.upgrading.mkdir(parents=True)
    projects.write(made.lock, text.dump_lock(LOCK.with_repository("small", LOCK.images["small"].with_current(1))))
    return made


def test_where_it_was_and_what_goes_on_with_it(project: Project) -> None:
    assert not list(upgrade_journal.interrupted_upgrades(project, LOCK))
    upgrade_journal.write_upgrade(project, MODEL, replace(START, stage="measure", candidate="small:2"))
    (told,) = upgrade_journal.interrupted_upgrades(project, LOCK)
    assert str(told) == (
        "an upgrade of Org/M was interrupted (measure of small:2): `builder upgrade Org/M` goes on with it, "
        "`builder upgrade Org/M --abort` gives it up"
    )
    upgrade_journal.write_upgrade(project, MODEL, replace(START, served=True))
    (told,) = upgrade_journal.interrupted_upgrades(project, LOCK)
    assert str(told) == (
        "an upgrade of Org/M was interrupted (build): `builder upgrade Org/M` serves the model as before and goes on "
        "with it, `builder upgrade Org/M --abort` serves the model as before and gives it up"
    )


def test_one_that_is_under_way_is_none(project: Project) -> None:
    with upgrade_journal.locked_upgrade(project, MODEL):
        upgrade_journal.write_upgrade(project, MODEL, START)
        assert not list(upgrade_journal.interrupted_upgrades(project, LOCK))
    assert list(upgrade_journal.interrupted_upgrades(project, LOCK))


def test_a_model_that_is_not_on_record_is_named_by_its_recipe(project: Project) -> None:
    upgrade_journal.write_upgrade(project, MODEL, START)
    (told,) = upgrade_journal.interrupted_upgrades(project, Lock())
    assert "(build): `builder upgrade recipes/chat.yaml` goes on" in str(told)


def test_the_command_that_is_told_is_one_word_of_the_shell(project: Project) -> None:
    upgrade_journal.write_upgrade(project, MODEL, replace(START, target="$(id) x"))
    (told,) = upgrade_journal.interrupted_upgrades(project, Lock())
    assert "`builder upgrade '$(id) x'` goes on" in str(told)


def test_a_journal_that_is_none_is_told_and_in_nobodys_way(project: Project) -> None:
    projects.write(project.upgrading / "Org%2FM.json", "{")
    (told,) = upgrade_journal.interrupted_upgrades(project, LOCK)
    assert "is no journal of an upgrade" in str(told)
    assert "remove the file" in str(told)


@pytest.mark.slow
def test_list_tells_of_it(project: Project) -> None:
    upgrade_journal.write_upgrade(project, MODEL, replace(START, stage="measure", candidate="small:2"))
    listed = run("list", cwd=project.root)
    assert "an upgrade of Org/M was interrupted (measure of small:2)" in " ".join(listed.stderr.split())
    assert "interrupted" not in listed.stdout
    document = json_outputs.parsed("list", run("list", "--json", cwd=project.root).stdout)
    assert document["interrupted_upgrades"] == [
        {
            "subject": MODEL,
            "stage": "measure",
            "before": "small:1",
            "candidate": "small:2",
            "started": START.started,
            "problem": None,
            "goes_on_with": "builder upgrade Org/M",
        }
    ]

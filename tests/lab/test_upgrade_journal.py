"""The journal of an upgrade: what it keeps, what is refused, and how an interrupted upgrade is reported."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import ConflictError
from builder.base.project import Project
from builder.lab import upgrade_journal
from builder.lab.upgrade_journal import Upgrade
from builder.lock import text
from builder.lock.model import ImageName, Lock, NumberedImage, Pairing
from tests import json_outputs, projects
from tests.cli.test_main import run as run_of_interrupted

if TYPE_CHECKING:
    from pathlib import Path


START = Upgrade("recipes/chat.yaml", "Org/M", {"vllm": None}, "small:1", "2026-11-20T22:00:00Z")


def test_the_journal_in_its_folder(tmp_path: Path) -> None:
    project = Project(tmp_path)
    subject = "Org/M ü"
    with upgrade_journal.journal_of(project, subject).hold():
        assert upgrade_journal.journal_of(project, subject).read() is None
        upgrade_journal.journal_of(project, subject).write(START)
        assert upgrade_journal.journal_of(project, subject).read() == START
        assert upgrade_journal.journal_of(project, "Org_M").read() is None
        with (
            pytest.raises(ConflictError, match="is already running, process"),
            upgrade_journal.journal_of(project, subject).hold(),
        ):
            pass
        upgrade_journal.journal_of(project, subject).remove()
        assert upgrade_journal.journal_of(project, subject).read() is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 4}', '{"format": 3, "stage": "dance"}', "[" * 9000])
def test_what_is_no_journal_is_told(tmp_path: Path, text: str) -> None:
    project = Project(tmp_path)
    projects.write(project.upgrading / "m.json", text)
    with pytest.raises(ConflictError, match="is not a journal of an upgrade"):
        upgrade_journal.journal_of(project, "m").read()


@pytest.mark.parametrize(
    "planted",
    [
        {"served": {"builder.serve.asked": '{"container": {"volumes": ["/:/host"]}}'}},
        {"before": "-x:1"},
        {"candidate": "small:latest"},
        {"model": "../../etc"},
        {"update": {"vllm": "--upload-pack=x"}},
        {"update": {"-v": None}},
    ],
    ids=str,
)
def test_a_journal_with_more_than_names_is_refused(tmp_path: Path, planted: dict[str, object]) -> None:
    project = Project(tmp_path)
    text = {"format": 3, **asdict(START)}
    projects.write(project.upgrading / "m.json", json.dumps(text))
    assert upgrade_journal.journal_of(project, "m").read() == START
    projects.write(project.upgrading / "m.json", json.dumps(text | planted))
    with pytest.raises(ConflictError, match="is not a journal of an upgrade"):
        upgrade_journal.journal_of(project, "m").read()


# Upgrades that were interrupted, as `list` tells of them; `status` has the same, and needs an engine.

MODEL, IMAGE = "Org/M", ImageName("small", 1)
RECORD = NumberedImage("2026-11-20T22:00:00Z", "small", "linux/amd64", f"sha256:{1:064x}", "h", 1)
LOCK = Lock().with_image(IMAGE, RECORD).with_pairing(MODEL, Pairing(IMAGE, "recipes/chat.yaml"))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = projects.make(tmp_path)
    made.upgrading.mkdir(parents=True)
    projects.write(made.lock, text.dump_lock(LOCK.with_current(ImageName("small", 1))))
    return made


def test_where_it_was_and_what_goes_on_with_it(project: Project) -> None:
    assert not list(upgrade_journal.interrupted_upgrades(project, LOCK))
    upgrade_journal.journal_of(project, MODEL).write(replace(START, candidate="small:2"))
    (told,) = upgrade_journal.interrupted_upgrades(project, LOCK)
    assert str(told) == (
        "an upgrade of Org/M was interrupted (test of small:2): `builder upgrade Org/M` continues it, "
        "`builder upgrade Org/M --abort` cancels it"
    )
    upgrade_journal.journal_of(project, MODEL).write(replace(START, served=True))
    (told,) = upgrade_journal.interrupted_upgrades(project, LOCK)
    assert str(told) == (
        "an upgrade of Org/M was interrupted (build): `builder upgrade Org/M` serves the model as before and "
        "continues it, `builder upgrade Org/M --abort` serves the model as before and cancels it"
    )


def test_one_that_is_under_way_is_none(project: Project) -> None:
    with upgrade_journal.journal_of(project, MODEL).hold():
        upgrade_journal.journal_of(project, MODEL).write(START)
        assert not list(upgrade_journal.interrupted_upgrades(project, LOCK))
    assert list(upgrade_journal.interrupted_upgrades(project, LOCK))


def test_a_model_that_is_not_on_record_is_named_by_its_recipe(project: Project) -> None:
    upgrade_journal.journal_of(project, MODEL).write(START)
    (told,) = upgrade_journal.interrupted_upgrades(project, Lock())
    assert "(build): `builder upgrade recipes/chat.yaml` continues" in str(told)


def test_the_command_that_is_told_is_one_word_of_the_shell(project: Project) -> None:
    upgrade_journal.journal_of(project, MODEL).write(replace(START, target="$(id) x"))
    (told,) = upgrade_journal.interrupted_upgrades(project, Lock())
    assert "`builder upgrade '$(id) x'` continues" in str(told)


def test_a_journal_that_is_none_is_told_and_in_nobodys_way(project: Project) -> None:
    projects.write(project.upgrading / "Org%2FM.json", "{")
    (told,) = upgrade_journal.interrupted_upgrades(project, LOCK)
    assert "is not a journal of an upgrade" in str(told)
    assert "remove the file" in str(told)


@pytest.mark.slow
def test_list_tells_of_it(project: Project) -> None:
    upgrade_journal.journal_of(project, MODEL).write(replace(START, candidate="small:2"))
    listed = run_of_interrupted("list", cwd=project.root)
    assert "an upgrade of Org/M was interrupted (test of small:2)" in " ".join(listed.stderr.split())
    assert "interrupted" not in listed.stdout
    document = json_outputs.parsed("list", run_of_interrupted("list", "--json", cwd=project.root).stdout)
    assert document["interrupted_upgrades"] == [
        {
            "subject": MODEL,
            "stage": "test",
            "before": "small:1",
            "candidate": "small:2",
            "started": START.started,
            "problem": None,
            "goes_on_with": "builder upgrade Org/M",
        }
    ]

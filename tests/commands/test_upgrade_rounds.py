"""The rounds in which an upgrade measures two images: real evidence and real requirements, of a server that is none."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.base.errors import MeasuringError
from builder.base.project import Project
from builder.commands import measuring, servers, upgrade
from builder.evidence import run_record, standing
from builder.evidence.run_record import Evidence, Figure, Finding
from builder.lab import upgrade_journal
from builder.lab.measure import measurement
from builder.lab.measure.measurement import Outcome
from builder.lab.upgrade_journal import Upgrade
from builder.lock import lock_file, text
from builder.lock.model import ImageName, Lock, Model, NumberedImage, Pairing, Repository
from builder.serving import running
from tests import projects
from tests.evidence import runs
from tests.workspaces import NO_ENGINE, workspace

OLD, NEW = ImageName("small", 1), ImageName("small", 2)
RECIPE = """\
name: chat
model: Org/Model-1B
container: small
command: vllm serve Org/Model-1B
requires: {bench: {tg at 0: ">= 97 % of current"}}
"""
UPGRADE = Upgrade("recipes/chat.yaml", runs.MODEL, {}, str(OLD), "now", candidate=str(NEW))


class Machine:
    """Stands for the servers of both images: each measurement is a number of tokens a second, with noise."""

    def __init__(self, project: Project, monkeypatch: pytest.MonkeyPatch, speed: float, noise: float = 0.005) -> None:
        self.project, self.speed, self.noise = project, speed, noise
        self.numbers = random.Random(7)  # noqa: S311
        self.log: list[str] = []
        monkeypatch.setattr(upgrade, "measure_current", lambda *_: self.keep(OLD, 50.0) and "")
        monkeypatch.setattr(measuring, "candidate_server", self.served)
        monkeypatch.setattr(measurement, "find_measured_server", lambda _: None)
        monkeypatch.setattr(measuring, "request_as_before", lambda *_: None)
        monkeypatch.setattr(upgrade, "measure", lambda *_: self.keep(NEW, self.speed))
        monkeypatch.setattr(upgrade, "serve_as_before", lambda *_: self.log.append("as before"))

    @contextmanager
    def served(self, _workspace: object, _request: object, name: ImageName) -> Iterator[None]:
        self.log.append(f"serve {name.number}")
        yield
        self.log.append(f"stop {name.number}")

    def keep(self, name: ImageName, speed: float) -> bool:
        self.log.append(f"measure {name.number}")
        values = tuple(self.numbers.gauss(speed, speed * self.noise) for _ in range(3))
        figure = Figure("tg", {"depth": 0, "concurrency": 1}, "tokens/s", "higher", values)
        subject = standing.present_subject(
            self.project, lock_file.read_lock(self.project.lock), name, runs.MODEL, "bench"
        )
        fields: dict[str, Any] = {"figures": (figure,), "findings": (), "accepted": "", "raw": None}
        run: Evidence = replace(runs.bench(), subject=replace(subject, machine=runs.MACHINE), **fields)
        run_record.add_run(self.project, name, run)
        return True


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = projects.make(tmp_path)
    projects.write(made.recipes / "chat.yaml", RECIPE)
    numbers = {
        number: NumberedImage(
            "2026-11-20T22:00:00Z", "small", "linux/arm64", f"sha256:{number:064x}", f"sha256:{number:064x}", 5,
            recipe="recipes/chat.yaml",
        )
        for number in (1, 2)
    }  # fmt: skip
    models = {runs.MODEL: Model(Pairing(OLD, "recipes/chat.yaml"))}
    projects.write(made.lock, text.dump_lock(Lock(images={"small": Repository(3, 1, numbers=numbers)}, models=models)))
    return made


def measured(project: Project) -> tuple[str, ...]:
    return upgrade._measure(workspace(project, NO_ENGINE), UPGRADE)


def test_two_that_are_equal_are_told_so_after_three_rounds_in_turn(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(project, monkeypatch, 50.0)
    machine.keep(OLD, 500.0)  # of another day, on a machine that was quicker
    machine.log.clear()
    assert measured(project) == ()
    a_round = ["as before", "measure 1", "serve 2", "measure 2", "stop 2"]
    assert machine.log == [*a_round * 3, "as before"]


def test_one_that_is_slower_is_told_with_its_band(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(project, monkeypatch, 45.0)
    (missing,) = measured(project)
    assert missing.startswith("bench tg at 0: 44.9")
    assert "required: >= 97 % of current; current image: 50.0" in missing
    assert missing.endswith("over 3 rounds)")
    assert machine.log.count("measure 2") == 3


def test_noise_takes_more_rounds_and_is_no_verdict(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(project, monkeypatch, 48.0, noise=0.3)
    missing = measured(project)
    assert machine.log.count("measure 1") == machine.log.count("measure 2") == 8
    assert not [each for each in missing if not each.endswith("over 8 rounds): too much noise to tell")]


def test_a_killed_one_goes_on_with_the_rounds_that_it_has(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(project, monkeypatch, 50.0)
    for _ in range(2):
        machine.keep(OLD, 50.0)
        machine.keep(NEW, 50.0)
    machine.log.clear()
    assert measured(project) == ()
    assert machine.log.count("measure 2") == 1


def test_a_candidate_that_fails_gets_no_further_round(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(project, monkeypatch, 50.0)
    monkeypatch.setattr(upgrade, "measure", lambda *_: False)
    assert measured(project) == ("bench tg at 0: has not been run",)
    assert machine.log.count("serve 2") == 1


def test_a_check_that_both_images_fail_is_the_reason_and_the_current_image_keeps_its_standing(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = Finding("coherence", "throughput", "fail", "the coherence test failed")
    failed = Outcome("bench", "quick", "1", "", "2026-11-20T22:00:00Z", 1.0, "fail", findings=(finding,))
    measure_current = upgrade.measure_current
    machine = Machine(project, monkeypatch, 50.0)

    @contextmanager
    def current(*_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(running=SimpleNamespace(image=str(OLD)), image=OLD)

    def measure_new(*_: object) -> bool:
        subject = standing.present_subject(project, lock_file.read_lock(project.lock), NEW, runs.MODEL, "bench")
        run_record.add_run(project, NEW, failed.evidence(replace(subject, machine=runs.MACHINE)))
        return False

    monkeypatch.setattr(upgrade, "measure_current", measure_current)
    monkeypatch.setattr(upgrade, "measure", measure_new)
    monkeypatch.setattr(measuring, "chosen_server", current)
    monkeypatch.setattr(measuring, "measure_server", lambda *_: failed)
    assert measured(project) == (
        "bench tg at 0: not measured: bench quick failed (coherence at throughput)",
        "the current image, small:1, failed the bench quick, so the candidate could not be compared with it"
        " (coherence at throughput)",
    )
    assert machine.log.count("serve 2") == 1
    assert not run_record.of_image(project, OLD)


@pytest.mark.parametrize("fails", ["_prove", "_measure", "_promote", ""])
def test_only_what_passes_every_step_is_promoted(project: Project, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    taken: list[str] = []

    def step(name: str) -> tuple[str, ...]:
        taken.append(name)
        if name == fails == "_measure":
            raise MeasuringError("no server")
        return ("it lacks something",) if name == fails else ()

    names = ["_prove", "_measure", "_promote"]
    for name in names:
        monkeypatch.setattr(upgrade, name, lambda *_, name=name: step(name))
    decided = upgrade._decided(workspace(project, NO_ENGINE), UPGRADE)
    assert decided.result == ("rejected" if fails else "promoted")
    assert decided.why == {"": (), "_measure": ("measure: no server",)}.get(fails, ("it lacks something",))
    assert taken == names[: names.index(fails) + 1 if fails else 3]


def test_a_candidate_that_is_the_image_before_or_has_its_place_already_is_not_tested(project: Project) -> None:
    made = workspace(project, NO_ENGINE)
    assert upgrade._decided(made, replace(UPGRADE, candidate=str(OLD))).result == "unchanged"
    lock = lock_file.read_lock(project.lock).with_pairing(runs.MODEL, Pairing(NEW, "recipes/chat.yaml"))
    projects.write(project.lock, text.dump_lock(lock))
    assert upgrade._decided(made, UPGRADE).result == "promoted"


@pytest.mark.parametrize("end", [KeyboardInterrupt(), RuntimeError("a mistake")])
def test_whatever_ends_it_the_model_is_served_as_before(
    project: Project, monkeypatch: pytest.MonkeyPatch, end: BaseException
) -> None:
    machine = Machine(project, monkeypatch, 50.0)

    def measure(*_: object) -> bool:
        raise end

    monkeypatch.setattr(upgrade, "_prove", lambda *_: ())
    monkeypatch.setattr(upgrade, "measure", measure)
    with pytest.raises(type(end)), upgrade_journal.journal_of(project, runs.MODEL).hold():
        upgrade_journal.journal_of(project, runs.MODEL).write(UPGRADE)
        upgrade._finished(workspace(project, NO_ENGINE), UPGRADE)
    assert machine.log[-1] == "as before"
    assert [each.model for each in upgrade_journal.interrupted_upgrades(project, Lock())] == [runs.MODEL]


def test_what_a_killed_one_left_makes_room_for_the_models_own_server(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(
        running, "find_candidates", lambda _, recipe: [SimpleNamespace(name=f"a candidate by {recipe}")]
    )
    monkeypatch.setattr(servers, "end_server", lambda server: ended.append(server.name))

    def look(recipe: str) -> list[str]:
        ended.clear()
        servers.candidates_of_interrupted_upgrade(workspace(project, NO_ENGINE), recipe)
        return ended

    assert look("recipes/chat.yaml") == []
    with upgrade_journal.journal_of(project, runs.MODEL).hold():
        upgrade_journal.journal_of(project, runs.MODEL).write(UPGRADE)
        assert look("recipes/chat.yaml") == []
    assert look("recipes/other.yaml") == []
    assert look("recipes/chat.yaml") == ["a candidate by recipes/chat.yaml"]

"""Upgrades with a stand-in for vLLM: what is promoted, what is rejected, and what a kill leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable
from functools import partial

import pytest

from builder.engine import client, containers
from builder.engine.client import Endpoint
from builder.evidence import run_record
from builder.lab import upgrade_journal
from builder.lock import lock_file
from builder.lock.model import ImageName
from tests import projects
from tests.commands import upgrade_trials
from tests.commands.serving import MODEL, Kitchen
from tests.commands.upgrade_trials import ROOT, paired
from tests.conftest import command, run_command

pytestmark = pytest.mark.engine

Builder = Callable[..., subprocess.CompletedProcess[str]]
_SHORT = ("does not start", "dies when asked", "never gets ready")


@pytest.fixture
def builder(kitchen: Kitchen) -> Builder:
    return partial(run_command, kitchen.project, environ=kitchen.environ)


def change(kitchen: Kitchen, verdict: str) -> None:
    """Makes the next build's vLLM another one, which the probe finds so."""
    upgrade_trials.change(kitchen, (ROOT, f'"root": "{verdict}"'))


def served(endpoint: Endpoint, kitchen: Kitchen) -> tuple[str, str]:
    """The image and the id of the model's own container, which answers."""
    service = containers.find_container(endpoint, kitchen.name)
    assert service
    urllib.request.urlopen(f"http://127.0.0.1:{kitchen.port}/health", timeout=120).close()
    return service.labels["builder.serve.image"], service.id


def candidates(endpoint: Endpoint, kitchen: Kitchen) -> bool:
    return containers.find_container(endpoint, f"{kitchen.name}-candidate") is not None


@pytest.mark.long
def test_what_passes_its_probes_is_promoted_and_served(kitchen: Kitchen, builder: Builder, endpoint: Endpoint) -> None:
    builder("run", "chat")
    before = paired(kitchen)
    change(kitchen, "good")
    lock = kitchen.project.lock.read_bytes()
    assert f"would build the next number of {kitchen.repository}" in builder("upgrade", MODEL, "--dry-run").stdout
    assert kitchen.project.lock.read_bytes() == lock
    assert upgrade_journal.journal_of(kitchen.project, MODEL).read() is None
    told = json.loads(builder("upgrade", MODEL, "--json").stdout)
    now = paired(kitchen)
    assert now != before
    assert (told["result"], told["before"], told["candidate"]) == ("promoted", str(before), str(now))
    assert served(endpoint, kitchen)[0] == told["served"] == str(now)
    assert lock_file.read_lock(kitchen.project.lock).images[kitchen.repository].current == now.number
    assert [run.verdict for run in run_record.of_image(kitchen.project, now) if run.kind == "probe"] == ["pass"]
    assert not candidates(endpoint, kitchen)
    again = builder("upgrade", MODEL).stdout
    assert "nothing is newer: a build from the latest sources would make" in again
    assert upgrade_journal.journal_of(kitchen.project, MODEL).read() is None
    builder("rollback", "chat")
    assert paired(kitchen) == before


@pytest.mark.long
def test_what_fails_a_probe_stays_with_its_evidence_and_nothing_moves(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    builder("run", "chat")
    before, own = paired(kitchen), served(endpoint, kitchen)
    lock = lock_file.read_lock(kitchen.project.lock)
    change(kitchen, "broken")
    told = builder("upgrade", MODEL, code=1).stdout
    assert f"stays on {before}: the candidate was rejected" in told
    assert "because: probe own: failed" in told
    after = lock_file.read_lock(kitchen.project.lock)
    assert (after.models, after.pins) == (lock.models, lock.pins)
    assert after.images[kitchen.repository].current == lock.images[kitchen.repository].current
    assert served(endpoint, kitchen) == own
    assert not candidates(endpoint, kitchen)
    candidate = ImageName(kitchen.repository, max(after.images[kitchen.repository].numbers))
    assert [run.verdict for run in run_record.of_image(kitchen.project, candidate) if run.kind == "probe"] == ["fail"]
    assert "lacks what" in builder("pair", MODEL, str(candidate), code=1).stderr


@pytest.mark.long
def test_a_new_image_that_fails_a_required_probe_as_it_is_served_gives_way(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    builder("run", "chat")
    before = paired(kitchen)
    change(kitchen, "broken")
    configuration = kitchen.project.root / "builder.yaml"
    requires = configuration.read_text(encoding="utf-8")
    configuration.unlink()
    builder("build", "chat")
    assert paired(kitchen) != before
    projects.write(configuration, requires)
    told = " ".join(builder("restart", "chat").stdout.split())
    assert f"→ {before}, because {kitchen.name} answers, but fails the probe own" in told
    assert paired(kitchen) == before
    assert served(endpoint, kitchen)[0] == str(before)


@pytest.mark.long
def test_a_kill_leaves_what_counts_and_the_same_command_goes_on(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    builder("run", "chat")
    before, own = paired(kitchen), served(endpoint, kitchen)
    change(kitchen, "good")
    moments = set()
    for moment in ("build", "test", "server"):
        with subprocess.Popen(
            command(kitchen.project, "upgrade", MODEL), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, **kitchen.environ}, start_new_session=True,
        ) as process:  # fmt: skip
            end = time.monotonic() + 600
            while process.poll() is None and time.monotonic() < end:
                state = upgrade_journal.journal_of(kitchen.project, MODEL).read()
                if state and (candidates(endpoint, kitchen) if moment == "server" else state.stage == moment):
                    moments.add(moment)
                    break
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGKILL)
        assert paired(kitchen) == before
        assert served(endpoint, kitchen) == own
    assert "server" in moments
    assert "continuing the interrupted upgrade: test of" in builder("upgrade", MODEL).stderr
    assert served(endpoint, kitchen)[0] == str(paired(kitchen)) != str(before)
    assert not candidates(endpoint, kitchen)


def test_what_was_interrupted_can_be_given_up(kitchen: Kitchen, builder: Builder, endpoint: Endpoint) -> None:
    builder("run", "chat")
    before, own = paired(kitchen), served(endpoint, kitchen)
    assert f"no upgrade of {MODEL} was interrupted" in builder("upgrade", MODEL, "--abort", code=1).stderr
    change(kitchen, "good")
    with subprocess.Popen(
        command(kitchen.project, "upgrade", MODEL), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, **kitchen.environ}, start_new_session=True,
    ) as process:  # fmt: skip
        end = time.monotonic() + 600
        while not candidates(endpoint, kitchen) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    assert "the upgrade was cancelled" in builder("upgrade", MODEL, "--abort").stdout
    assert (paired(kitchen), served(endpoint, kitchen)) == (before, own)
    assert not candidates(endpoint, kitchen)
    assert upgrade_journal.journal_of(kitchen.project, MODEL).read() is None


@pytest.mark.long
def test_a_proof_that_is_killed_leaves_no_container(kitchen: Kitchen, builder: Builder, endpoint: Endpoint) -> None:
    builder("run", "chat")
    upgrade_trials.change(kitchen, upgrade_trials.GOOD)
    give_up = ("upgrade", MODEL, "--abort")
    killed = upgrade_trials.kill(kitchen, endpoint, lambda _: _proves(kitchen, endpoint), next_command=give_up)
    assert killed
    assert killed.stage == "test"
    assert not upgrade_trials.at_work(kitchen, endpoint)


def _proves(kitchen: Kitchen, endpoint: Endpoint) -> bool:
    """True once the upgrade has a container in which it proves; the build has one, too."""
    state = upgrade_journal.journal_of(kitchen.project, MODEL).read()
    return bool(state and state.stage == "test" and upgrade_trials.at_work(kitchen, endpoint))


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in _SHORT else [pytest.mark.full]) for name in upgrade_trials.REGRESSIONS],
)
def test_a_worse_candidate_in_the_place_of_the_server_gives_it_back(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint, name: str
) -> None:
    builder("run", "chat")
    rejected = upgrade_trials.regression(kitchen, endpoint, name, "", in_its_place=True)
    assert rejected.afterwards < upgrade_trials.PUT_BACK_SECONDS


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_ended_by_a_signal_while_the_candidate_has_its_place_the_server_comes_back(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint, number: signal.Signals
) -> None:
    builder("run", "chat")
    before = paired(kitchen)
    upgrade_trials.change(kitchen, upgrade_trials.GOOD)
    projects.write(kitchen.project.root / "probes/own/check.py", "import time; time.sleep(600)")

    def is_in_its_place(_seconds: float) -> bool:
        own = containers.find_container(endpoint, kitchen.name)
        return bool(own and not own.is_up and upgrade_trials.candidate(endpoint, kitchen))

    ended = upgrade_trials.kill(kitchen, endpoint, is_in_its_place, number=number)
    assert ended
    assert ended.stage == "test"
    assert served(endpoint, kitchen)[0] == str(before) == str(paired(kitchen))


@pytest.mark.long
def test_killed_while_the_candidate_has_the_place_of_the_server_the_next_command_puts_it_back(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    builder("run", "chat")
    before = paired(kitchen)
    upgrade_trials.change(kitchen, upgrade_trials.GOOD)
    projects.write(kitchen.project.root / "probes/own/check.py", "import time; time.sleep(600)")
    policies = []

    def is_in_its_place(_seconds: float) -> bool:
        own = containers.find_container(endpoint, kitchen.name)
        if own is None or own.is_up or not upgrade_trials.candidate(endpoint, kitchen):
            return False
        settings = client.request(endpoint, "GET", f"/containers/{own.id}/json")["HostConfig"]
        policies.append(settings["RestartPolicy"]["Name"])
        return True

    killed = upgrade_trials.kill(kitchen, endpoint, is_in_its_place)
    assert killed
    assert killed.stage == "test"
    assert killed.seconds < upgrade_trials.PUT_BACK_SECONDS
    assert f"`builder upgrade {MODEL} --abort` serves the model as before and cancels it" in killed.told
    # Had the machine gone down with it, the engine would have started the server with the machine.
    assert policies == ["always"]
    assert served(endpoint, kitchen)[0] == str(before) == str(paired(kitchen))
    projects.write(kitchen.project.root / "probes/own/check.py", upgrade_trials.CHECK)
    assert "continuing the interrupted upgrade: test of" in builder("upgrade", MODEL).stderr
    assert served(endpoint, kitchen)[0] == str(paired(kitchen)) != str(before)
    assert not candidates(endpoint, kitchen)

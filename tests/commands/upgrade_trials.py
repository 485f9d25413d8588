"""Upgrades that go wrong on purpose: worse candidates, and ends by a signal. An image that counts is always served."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from builder.base.errors import INTERRUPTED
from builder.engine import containers
from builder.engine.client import Endpoint
from builder.lab import upgrade_journal
from builder.lock import lock_file
from builder.lock.model import ImageName
from builder.numbers import claims
from tests import projects
from tests.commands import serving
from tests.commands.serving import MODEL, Kitchen
from tests.conftest import command, run_command

ROOT = '"root": sys.argv[2]'
PROBE = """\
description: asks what the image thinks of itself
command: [python3, check.py]
seconds: 120
figures: {models: {unit: models, better: neither}}
"""
CHECK = """\
import json, os, sys, urllib.request
address = os.environ["BUILDER_ADDRESS"]
listing = json.load(urllib.request.urlopen(f"{address}/models", timeout=20))
print(json.dumps({"models": listing.get("count", 1)}))
sys.exit(0 if listing["data"][0]["root"] == "good" else 1)
"""
PUT_BACK_SECONDS = 300.0  # only a hang takes longer

# A stand-in has no GPU, whose memory is what decides this.
IN_ITS_PLACE = """\
import sys
from builder.serving import readiness
from builder.serving import starting
readiness.LEAST_SECONDS = 20.0
starting.fits_beside = lambda *_: False
from builder.cli.main import run_program
sys.exit(run_program(sys.argv[1:]))
"""

# Each changes the stand-in for vLLM: what it says of itself is `good`, and something else is wrong with it.
GOOD = (ROOT, '"root": "good"')
REGRESSIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "fails its probe": ((ROOT, '"root": "broken"'),),
    "does not start": (GOOD, ("if crashes():", "if True:")),
    "never gets ready": (GOOD, ('time.sleep(float(option("--slow", "0")))', "time.sleep(100_000)")),
    "answers with no JSON": (GOOD, ('        if self.path == "/v1/models":', '        if self.path == "/models":')),
    "dies when asked": (GOOD, ('        if self.path == "/die":', '        if self.path == "/v1/models":')),
    "hangs when asked": (
        GOOD,
        (
            "        text = METRICS",
            '        time.sleep(100_000 if "models" in self.path else 0)\n        text = METRICS',
        ),
    ),
    "answers with an error": (
        GOOD,
        ("self.send_response(200)", 'self.send_response(500 if "models" in self.path else 200)'),
    ),
    "gives a figure that is none": (('"data": [', '"count": float("nan"), "data": ['), GOOD),
}


@dataclass(frozen=True)
class Rejected:
    """A regression under `upgrade`: the seconds of the upgrade, and those from the verdict until it was over."""

    seconds: float
    afterwards: float


@dataclass(frozen=True)
class Killed:
    """An upgrade that was ended: in which stage, the seconds until the model answered again, and what `status` told in
    between."""

    stage: str
    seconds: float
    told: str


def paired(kitchen: Kitchen) -> ImageName:
    return lock_file.read_lock(kitchen.project.lock).models[MODEL].pairing.image


def served(endpoint: Endpoint, kitchen: Kitchen) -> str:
    """The image of the model's own container, once it answers; empty where it does not."""
    service = containers.find_container(endpoint, kitchen.name)
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{kitchen.port}/health", timeout=120).close()
    except OSError:
        return ""
    return service.labels["builder.serve.image"] if service and service.is_up else ""


def candidate(endpoint: Endpoint, kitchen: Kitchen) -> containers.Service | None:
    return containers.find_container(endpoint, f"{kitchen.name}-candidate")


def at_work(kitchen: Kitchen, endpoint: Endpoint) -> bool:
    """True where the project has a container in which something is checked or proven."""
    return bool(containers.container_listing(endpoint, f"{claims.PROJECT}={claims.existing_identity(kitchen.project)}"))


def change(kitchen: Kitchen, *edits: tuple[str, str], mark: str = "") -> None:
    """Makes the next build's vLLM another one, for which a probe is required."""
    path = kitchen.project.mods / "standin/vllm"
    text = projects.replaced((serving.HERE / "standin.py").read_text(encoding="utf-8"), *edits)
    projects.write(path, f"{text}# {mark}\n")
    projects.write(kitchen.project.root / "probes/own/probe.yaml", PROBE)
    projects.write(kitchen.project.root / "probes/own/check.py", CHECK)
    projects.write(kitchen.project.root / "builder.yaml", "requires: {probe: [own]}\n")


def upgrade(kitchen: Kitchen, *, in_its_place: bool) -> subprocess.Popen[bytes]:
    """Starts `upgrade` of the model; the candidate serves beside the model's own server, or in its place."""
    argv = command(kitchen.project, "upgrade", MODEL)
    if in_its_place:
        argv = [sys.executable, "-c", IN_ITS_PLACE, *argv[argv.index("--project") :]]
    return subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, **kitchen.environ, "PYTHONPATH": str(projects.REPOSITORY_ROOT)}, start_new_session=True,
    )  # fmt: skip


def regression(kitchen: Kitchen, endpoint: Endpoint, name: str, mark: str, *, in_its_place: bool) -> Rejected:
    """An upgrade to a candidate that is worse: it is rejected, and the model is served as before."""
    before = paired(kitchen)
    change(kitchen, *REGRESSIONS[name], mark=mark)
    began = time.monotonic()
    verdict = 0.0
    with upgrade(kitchen, in_its_place=in_its_place) as process:
        while process.poll() is None:
            state = upgrade_journal.journal_of(kitchen.project, MODEL).read()
            verdict = verdict or (time.monotonic() if state and state.result else 0.0)
            time.sleep(0.05)
    ended = time.monotonic()
    assert process.returncode == 1, f"{name}: ended with {process.returncode}"
    assert paired(kitchen) == before, name
    assert served(endpoint, kitchen) == str(before), name
    assert candidate(endpoint, kitchen) is None, name
    return Rejected(ended - began, ended - (verdict or ended))


def kill(
    kitchen: Kitchen,
    endpoint: Endpoint,
    moment: Callable[[float], bool],
    *,
    number: signal.Signals = signal.SIGKILL,
    next_command: tuple[str, ...] = ("run", "chat"),
) -> Killed | None:
    """Ends an upgrade, in whose candidate's place the model's own server steps aside, when ``moment`` says so, given
    the seconds so far: all of its processes by SIGKILL, itself by another signal. After SIGKILL ``next_command`` is
    given; the model then answers again, from an image that counts. None where the upgrade was over before."""
    began = time.monotonic()
    with upgrade(kitchen, in_its_place=True) as process:
        while process.poll() is None and not moment(time.monotonic() - began):
            time.sleep(0.02)
        if process.poll() is not None:
            assert process.returncode == 0, process.returncode
            return None
        state = upgrade_journal.journal_of(kitchen.project, MODEL).read()
        killed = time.monotonic()
        if number != signal.SIGKILL:
            process.send_signal(number)
            assert process.wait(timeout=PUT_BACK_SECONDS) == INTERRUPTED
        else:
            os.killpg(process.pid, number)
            # What answers is never anything else than an image that counts.
            assert served(endpoint, kitchen) in {str(paired(kitchen)), state.before if state else "", ""}
    told = ""
    if number == signal.SIGKILL:
        time.sleep(5.0)  # what it asked of the engine last may still be under way
        told = " ".join(run_command(kitchen.project, "status", environ=kitchen.environ).stderr.split())
        run_command(kitchen.project, *next_command, environ=kitchen.environ)
    answering, seconds = served(endpoint, kitchen), time.monotonic() - killed
    counts = {str(paired(kitchen)), state.before if state else ""}
    assert answering in counts, f"{answering or 'nothing'} answers, {counts} count"
    assert candidate(endpoint, kitchen) is None
    return Killed(state.stage if state else "", seconds, told)

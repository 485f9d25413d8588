"""Two images compared, each a stand-in for vLLM: what is served before and afterwards, and what an upgrade decides."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from builder.base.errors import INTERRUPTED
from builder.engine import containers
from builder.engine.client import Endpoint
from builder.evidence import run_record
from builder.lock import lock_file, text
from builder.lock.model import Adoption
from tests import json_outputs, projects
from tests.commands import upgrade_trials
from tests.commands.serving import MODEL, Kitchen
from tests.commands.upgrade_trials import IN_ITS_PLACE, candidate, paired
from tests.conftest import command, run_command

pytestmark = pytest.mark.engine

Builder = Callable[..., subprocess.CompletedProcess[str]]
NOTHING = "LOSS = 0.0"


@pytest.fixture
def builder(kitchen: Kitchen) -> Builder:
    return partial(run_command, kitchen.project, environ=kitchen.environ)


def change(kitchen: Kitchen, loss: float, mark: str = "") -> None:
    """Makes the next build's vLLM one that rates everything less likely by ``loss``."""
    path = kitchen.project.mods / "standin/vllm"
    text = path.read_text(encoding="utf-8")
    assert NOTHING in text
    projects.write(path, text.replace(NOTHING, f"LOSS = {loss}  # {mark}"))


def served(endpoint: Endpoint, kitchen: Kitchen) -> str:
    """The image of the model's own container, which answers."""
    service = containers.find_container(endpoint, kitchen.name)
    assert service
    urllib.request.urlopen(f"http://127.0.0.1:{kitchen.port}/health", timeout=120).close()
    assert containers.find_container(endpoint, f"{kitchen.name}-candidate") is None
    return service.labels["builder.serve.image"]


@pytest.mark.long
def test_both_are_served_in_turn_and_the_model_as_before(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    builder("run", "chat")
    first = paired(kitchen)
    change(kitchen, 0.05)
    builder("build", "chat")
    second = paired(kitchen)
    assert served(endpoint, kitchen) == str(first)

    alike = json_outputs.parsed("compare", builder("compare", str(first), str(first), "--json").stdout)
    assert (alike["verdict"], alike["passed"], alike["within"]) == ("identical", True, None)
    unlike = builder("compare", str(first.number), str(second.number), MODEL, "--json", code=1)
    told = json_outputs.parsed("compare", unlike.stdout)
    assert told["verdict"] == "different"
    assert told["perplexity_change"] == pytest.approx(0.0513, abs=1e-4)
    assert builder("compare", str(first), str(second), "--within", "6").stdout.startswith(
        f"{second} compared with {first}, "
    )
    assert served(endpoint, kitchen) == str(first)

    runs = run_record.of_image(kitchen.project, second)
    assert [(run.kind, run.verdict, run.sampling["reference"]) for run in runs] == [
        ("same", "changed", str(first)), ("same", "pass", str(first))
    ]  # fmt: skip
    assert "same answers" in builder("show", str(second)).stdout
    page = kitchen.project.root / "page.html"
    builder("report", "--output", str(page))
    assert "perplexity" in page.read_text(encoding="utf-8")


@pytest.mark.long
def test_another_model_is_told_and_is_no_evidence_of_the_same_image(kitchen: Kitchen, builder: Builder) -> None:
    kitchen.recipe(file="other", model="Org/Else")
    image = paired(kitchen)
    done = builder("compare", str(image), MODEL, "--recipe", "other", "--json")
    told = json_outputs.parsed("compare", done.stdout)
    note = f"different models are compared: {MODEL} and Org/Else"
    assert (told["model"], told["verdict"], told["notes"]) == ("Org/Else", "identical", [note])
    assert note in done.stderr
    (run,) = run_record.of_image(kitchen.project, image)
    assert (run.subject.model, run.subject.recipe) == ("Org/Else", "recipes/other.yaml")
    assert "reference_fingerprint" not in run.sampling


def test_an_image_of_others_without_vllm_is_refused_before_a_server_starts(kitchen: Kitchen, builder: Builder) -> None:
    image = paired(kitchen)
    lock = lock_file.read_lock(kitchen.project.lock)
    record = lock.image(image)
    assert record
    adopted = replace(record, definition="", input_hash="", adopted=Adoption("debian:bookworm-slim"))
    projects.write(kitchen.project.lock, text.dump_lock(lock.with_image(image, adopted)))
    said = builder("compare", str(image), MODEL, "--", "--slow", "1", code=7).stderr
    assert f"error: {image} contains no vLLM: nothing was compared" in said
    assert "waiting" not in said


DEATHS = {"rates": ('elif "prompt_logprobs" in body:', 'elif "prompt_logprobs" in body and os._exit(1):')}
DEATHS["answers"] = ('"content": "42"', '"content": os._exit(1)')


@pytest.mark.long
@pytest.mark.parametrize("while_it", DEATHS)
def test_a_server_that_dies_is_no_different_answer(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint, while_it: str
) -> None:
    builder("run", "chat")
    first = paired(kitchen)
    path = kitchen.project.mods / "standin/vllm"
    projects.write(path, projects.replaced(path.read_text(encoding="utf-8"), DEATHS[while_it]))
    builder("build", "chat")
    second = paired(kitchen)
    said = builder("compare", str(first), str(second), code=1)
    assert said.stdout == ""
    assert f"error: {kitchen.name}-candidate ended during the measurement" in said.stderr
    assert (kitchen.project.state / f"serve-logs/{kitchen.name}-candidate.log").stat().st_size > 0
    assert run_record.of_image(kitchen.project, second) == ()
    assert served(endpoint, kitchen) == str(first)


@pytest.mark.long
@pytest.mark.parametrize("while_it", ["compares", "puts the server back"])
def test_interrupted_the_model_is_served_as_before(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint, while_it: str
) -> None:
    builder("run", "chat", "--", "--slow", "4")
    first = paired(kitchen)
    argv = command(kitchen.project, "compare", str(first), str(first))
    argv = [sys.executable, "-c", IN_ITS_PLACE, *argv[argv.index("--project") :]]
    environ = {**os.environ, **kitchen.environ, "PYTHONPATH": str(projects.REPOSITORY_ROOT)}
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environ) as comparison:
        has_begun = False
        while comparison.poll() is None:
            own = containers.find_container(endpoint, kitchen.name)
            is_up = own is not None and own.is_up
            has_begun = has_begun or not is_up
            if has_begun and (candidate(endpoint, kitchen) is not None and not is_up) == (while_it == "compares"):
                break
            time.sleep(0.1)
        comparison.send_signal(signal.SIGINT)
        _, said = comparison.communicate(timeout=120)
    assert comparison.returncode == INTERRUPTED, said
    end = time.monotonic() + 120
    while not upgrade_trials.served(endpoint, kitchen) and time.monotonic() < end:
        time.sleep(0.2)
    assert served(endpoint, kitchen) == str(first)
    again = containers.find_container(endpoint, kitchen.name)
    assert again
    assert containers.service_process(endpoint, again.id)[0][-2:] == ("--slow", "4")
    assert run_record.of_image(kitchen.project, first) == ()


@pytest.mark.long
def test_an_upgrade_compares_and_decides_by_it(kitchen: Kitchen, builder: Builder, endpoint: Endpoint) -> None:
    builder("run", "chat")
    first = paired(kitchen)
    projects.write(kitchen.project.root / "builder.yaml", "requires: {same: within 0.5 %}\n")
    change(kitchen, 0.05)
    told = builder("upgrade", MODEL, code=1).stdout
    assert f"same {first}: perplexity changed by +5.13 %" in told
    assert (paired(kitchen), served(endpoint, kitchen)) == (first, str(first))

    path = kitchen.project.mods / "standin/vllm"
    projects.write(path, path.read_text(encoding="utf-8").replace("LOSS = 0.05", "LOSS = 0.002"))
    builder("upgrade", MODEL)
    now = paired(kitchen)
    assert now.number > first.number
    assert served(endpoint, kitchen) == str(now)
    (run,) = (each for each in run_record.of_image(kitchen.project, now) if each.kind == "same")
    assert (
        json.loads(run_record.raw_answers(kitchen.project, run.raw or "") or b"{}")["verdict"] == "different"
    )  # within the limit


@pytest.mark.long
def test_a_bisection_names_the_change_that_made_the_answers_other_ones(kitchen: Kitchen, builder: Builder) -> None:
    first = paired(kitchen).number
    change(kitchen, 0.05)
    builder("build", "chat")
    said = builder("bisect", MODEL, "--good", str(first), "--bad", str(paired(kitchen).number), "--same", "--json")
    bisected = json.loads(said.stdout)
    (culprit,) = bisected["culprits"]
    assert (bisected["result"], culprit["axis"]) == ("found", "mod standin")
    assert "LOSS = 0.05" in culprit["change"]

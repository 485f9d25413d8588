"""The lines that `build` prints of its results."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from builder.building.bake import BuildOutlook, Expectation
from builder.building.request import BuildOutcome, Built, HeldPointer, MissingPart, ModelOutcome
from builder.building.resolve import Comparison, PlannedImage
from builder.cli import build_cli
from builder.commands.transfers import PushedImage
from builder.engine.build_log import StepMemory
from builder.lock.model import ImageName, Lock
from builder.plan.rules import CompileJobs
from tests import json_outputs
from tests.plan import shipped


@pytest.mark.parametrize(
    ("image", "advice"),
    [("tf5:1", "builder rollback Org/M --to 2"), ("node:2", "builder pair Org/M tf5:2")],
)
def test_the_way_to_an_image_that_is_there_leads_to_it(
    capsys: pytest.CaptureFixture[str], image: str, advice: str
) -> None:
    """`rollback` stays in the repository that the model is in, and ended in "is at number 2 already"."""
    build_cli._print_existing(BuildOutcome("tf5:2", "tf5:2", (ModelOutcome("Org/M", "elsewhere", image),)))
    assert capsys.readouterr().out.splitlines()[-1] == f"Org/M stays paired with {image}; to move it: `{advice}`"


def test_the_way_to_a_bad_image_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """`rollback` and `pair` refuse it."""
    models = (ModelOutcome("Org/M", "elsewhere", "tf5:1"),)
    for current in ("tf5:1", None):
        build_cli._print_existing(BuildOutcome("tf5:2", current, models, bad=True))
        assert capsys.readouterr().out.splitlines() == [
            "already built as tf5:2, which is marked bad; to build it again: --force",
            "the current image is tf5:1" if current else "no image is current",
            "Org/M stays paired with tf5:1",
        ]


def test_a_model_that_comes_from_another_repository_is_told_with_that(capsys: pytest.CaptureFixture[str]) -> None:
    models = ModelOutcome("Org/M", "paired", "node:3"), ModelOutcome("Org/N", "paired", "node:3", "node:7")
    build_cli._print_built(replace(BUILD_JSON_BUILT, models=models, waiting=(), compiled=()))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == ["  paired with Org/M", "  paired with Org/N, in place of node:7"]


# The results of a build for programs, as its schema says: also those that no small build brings about.

MISSING = MissingPart("no proof", "builder prove node:3")
BUILD_JSON_BUILT = Built(
    image="node:3",
    models=(ModelOutcome("Org/A", "paired", "node:3", "other:1"),),
    changes=("vllm moved",),
    seconds=61.24,
    size=9_000_000,
    layers=9,
    new_layers=2,
    steps=7,
    cached_steps=5,
    compiled=(StepMemory("vllm", 4, 30_000),),
    log=".builder/logs/1.log",
    waiting=(
        HeldPointer("Org/B", "model", None, False, (MISSING,)),
        HeldPointer("node", "repository", "node:2", False),
    ),
    proofs=(),
    current="node:2",
)


def printed(document: dict[str, Any]) -> dict[str, Any]:
    return json_outputs.parsed("build", json.dumps({"schema_version": 1, **document}))


def test_a_new_image_with_what_waits() -> None:
    (image,) = printed(build_cli.document([BUILD_JSON_BUILT]))["images"]
    assert image["models"] == [{"model": "Org/A", "state": "paired", "image": "node:3", "taken_from": "other:1"}]
    missing = [{"text": "no proof", "command": "builder prove node:3"}]
    assert image["waiting"] == [
        {"what": "Org/B", "kind": "model", "stays": None, "failed": False, "missing": missing},
        {"what": "node", "kind": "repository", "stays": "node:2", "failed": False, "missing": []},
    ]
    assert image["seconds"] == 61.2


def test_an_image_that_was_there_and_is_bad() -> None:
    models = ModelOutcome("Org/A", "unpaired", None), ModelOutcome("Org/B", "elsewhere", "node:1")
    waiting = (HeldPointer("Org/C", "model", "node:1", False, (MISSING,)),)
    (image,) = printed(build_cli.document([BuildOutcome("node:2", None, models, waiting, bad=True)]))["images"]
    assert (image["bad"], image["current"]) == (True, None)
    assert [(each["state"], each["image"]) for each in image["models"]] == [("unpaired", None), ("elsewhere", "node:1")]
    assert [each["what"] for each in image["waiting"]] == ["Org/C"]


def test_what_was_pushed() -> None:
    pushed = PushedImage(ImageName("node", 3), "registry.example/node:3", "sha256:0", already=False, latest=True)
    assert printed(build_cli.document([pushed]))["pushed"][0]["image"] == "node:3"


def test_a_plan() -> None:
    plan = shipped.plan("tf5", "git", "linux/arm64")
    image = PlannedImage(plan, None, (), {}, Lock(), {}, Comparison(None, plan.steps[:1], ("because",)))
    jobs = (CompileJobs("vllm", None, "as many as fit"),)
    ahead = BuildOutlook("tf5", jobs=jobs, seconds=Expectation(7200.0, "from image.yaml"), free=5)
    (planned,) = printed(build_cli.document(planned=[(image, ahead)]))["planned"]
    assert [step["kept"] for step in planned["steps"][:2]] == [True, False]
    assert planned["seconds"] == {"amount": 7200.0, "known_from": "from image.yaml"}
    assert (planned["bytes"], planned["free_bytes"], planned["jobs"][0]["jobs"]) == (None, 5, None)

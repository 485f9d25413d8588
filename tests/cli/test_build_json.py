"""The results of a build for programs, as its schema says: also those that no small build brings about."""

from __future__ import annotations

import json
from typing import Any

from builder.building.outlook import BuildOutlook, Expectation
from builder.building.resolve import AlreadyBuilt, Built, Comparison, HeldPointer, ModelOutcome, PlannedImage
from builder.cli import build_cli
from builder.commands.transfers import PushedImage
from builder.engine.build_log import StepMemory
from builder.lock.model import ImageName, Lock
from builder.plan.rules import CompileJobs
from tests import json_outputs
from tests.plan import shipped

MISSING = ("no proof", "builder prove node:3")
BUILT = Built(
    image="node:3",
    models=("Org/A",),
    changes=("vllm moved",),
    seconds=61.24,
    size=9_000_000,
    layers=9,
    new_layers=2,
    steps=7,
    cached_steps=5,
    compiled=(StepMemory("vllm", 4, 30_000),),
    log=".builder/logs/1.log",
    waiting=(HeldPointer("Org/B", True, "", (MISSING,)), HeldPointer("node:latest", False, "node:2", ())),
    taken_from={"Org/A": "other:1"},
    current="node:2",
)


def printed(document: dict[str, Any]) -> dict[str, Any]:
    return json_outputs.parsed("build", json.dumps({"schema_version": 1, **document}))


def test_a_new_image_with_what_waits() -> None:
    (image,) = printed(build_cli.document([BUILT]))["images"]
    assert image["models"] == [{"model": "Org/A", "state": "paired", "image": "node:3", "taken_from": "other:1"}]
    missing = [{"text": "no proof", "command": "builder prove node:3"}]
    assert image["waiting"] == [
        {"what": "Org/B", "kind": "model", "stays": None, "failed": False, "missing": missing},
        {"what": "node", "kind": "repository", "stays": "node:2", "failed": False, "missing": []},
    ]
    assert image["seconds"] == 61.2


def test_an_image_that_was_there_and_is_bad() -> None:
    models = (
        ModelOutcome("Org/A", "unpaired"),
        ModelOutcome("Org/B", "elsewhere", "node:1"),
        ModelOutcome("Org/C", "waiting", "node:1", (MISSING,)),
    )
    (image,) = printed(build_cli.document([AlreadyBuilt("node:2", True, "nothing", models)]))["images"]
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
    ahead = BuildOutlook("tf5", jobs=jobs, seconds=Expectation(7200.0, "says image.yaml"), free=5)
    (planned,) = printed(build_cli.document(planned=[(image, ahead)]))["planned"]
    assert [step["kept"] for step in planned["steps"][:2]] == [True, False]
    assert planned["seconds"] == {"amount": 7200.0, "known_from": "says image.yaml"}
    assert (planned["bytes"], planned["free_bytes"], planned["jobs"][0]["jobs"]) == (None, 5, None)

"""A run is stale by what it belongs to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builder.evidence import standing
from builder.evidence.records import Machine
from tests.evidence.runs import COMMIT, MACHINE, SUBJECT, bench, proof


def test_a_run_of_the_same_subject_counts_whatever_its_age() -> None:
    assert standing.stale_reasons(proof(started="1999-01-01T00:00:00Z"), SUBJECT) == ()


@pytest.mark.parametrize("part", ["model", "revision", "template", "recipe", "arguments"])
def test_a_part_that_was_not_looked_at_is_not_compared(part: str) -> None:
    nothing: dict[str, Any] = {part: None}
    without = replace(SUBJECT, **nothing)
    assert standing.stale_reasons(proof(), without) == ()
    assert standing.stale_reasons(proof(subject=without), SUBJECT) == ()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"fingerprint": "sha256:9"}, "the image has other content"),
        ({"model": "Org/Other"}, "the model is Org/Other now"),
        ({"revision": "cd" * 20}, "the model's revision is cdcdcdcdcdcd now, it was abababababab"),
        ({"template": f"sha256:{9:064x}"}, "the chat template changed"),
        ({"recipe": "recipes/b.yaml"}, "it is served by b now, it was chat"),
        ({"arguments": f"sha256:{9:064x}"}, "the recipe's options changed"),
        ({"overrides": {"a": "1"}}, "it ran without these options"),
    ],
)
def test_each_part_that_is_another_now_is_a_reason(change: dict[str, Any], told: str) -> None:
    assert standing.stale_reasons(proof(), replace(SUBJECT, **change)) == (told,)


def test_only_commits_tell_that_a_model_moved() -> None:
    assert standing.stale_reasons(proof(), replace(SUBJECT, revision="main")) == ()
    assert standing.stale_reasons(proof(subject=replace(SUBJECT, revision="v1")), SUBJECT) == ()
    assert SUBJECT.revision == COMMIT


def test_the_number_of_an_image_is_only_a_name() -> None:
    assert standing.stale_reasons(proof(), replace(SUBJECT, image="vllm-node-tf5:9")) == ()


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (replace(MACHINE, gpu="NVIDIA H100"), "it ran on NVIDIA GB10, which is NVIDIA H100 here"),
        (replace(MACHINE, gpus=2), "it ran on NVIDIA GB10, which is 2 x NVIDIA GB10 here"),
        (replace(MACHINE, driver="590.1"), "the GPU's driver is 590.1 now, it was 580.95"),
    ],
)
def test_another_machine_is_a_reason(now: Machine, told: str) -> None:
    present = replace(SUBJECT, overrides={"max_model_len": "4096"}, machine=now)
    assert standing.stale_reasons(bench(), present) == (told,)
    assert standing.stale_reasons(bench(), replace(present, machine=None)) == ()


def test_without_a_gpu_the_processor_counts() -> None:
    run = bench(subject=replace(SUBJECT, machine=Machine(cpu="A")))
    assert standing.stale_reasons(run, replace(SUBJECT, machine=Machine(cpu="B"))) == (
        "it ran on another processor, A",
    )


def test_another_set_is_another_figure() -> None:
    now = f"sha256:{9:064x}"
    assert standing.stale_reasons(proof(), SUBJECT, now) == ("the conversations changed",)
    assert standing.stale_reasons(proof(), SUBJECT, proof().set) == ()
    assert standing.stale_reasons(proof(set=""), SUBJECT, now) == ()

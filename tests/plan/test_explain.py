from __future__ import annotations

import pytest

from builder.plan.making import steps_file
from builder.plan.plan_model import Step
from builder.plan.rules import common_steps, explain_changes, read_steps

BEFORE = (
    Step("base", {"image": "debian:bookworm-slim", "content": "sha256:" + "a" * 64}),
    Step("vllm", {"wanted": "vllm==0.19.1", "version": "0.19.1"}),
    Step("python packages", {"torch": "2.13.0 111111111111", "uv": "0.13.8 222222222222"}),
    Step("Dockerfile", {"text": "1"}),
    Step("mod template", {"content": "sha256:" + "c" * 64}),
)


def changed(name: str, **takes: str) -> tuple[Step, ...]:
    return tuple(Step(name, {**step.takes, **takes}) if step.name == name else step for step in BEFORE)


def test_steps_survive_the_build_directory() -> None:
    assert read_steps(steps_file(BEFORE).content.decode()) == BEFORE


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (BEFORE, ()),
        (changed("base", content="sha256:" + "b" * 64), ("base content: aaaaaaaaaaaa → bbbbbbbbbbbb",)),
        (
            changed("vllm", wanted="vllm==0.20.0", version="0.20.0"),
            ("vllm wanted: vllm==0.19.1 → vllm==0.20.0", "vllm version: 0.19.1 → 0.20.0"),
        ),
        (changed("python packages", torch="2.14.0 333333333333"), ("torch: 2.13.0 → 2.14.0",)),
        (changed("python packages", torch="2.13.0 333333333333"), ("torch: 2.13.0, other files",)),
        (changed("python packages", ray="2.50 4"), ("ray: not there → 2.50",)),
        (changed("mod template", content="sha256:" + "d" * 64), ("mod template: changed",)),
        ((*BEFORE, Step("mod b", {"content": "x"})), ("mod b: new",)),
        (BEFORE[:-1], ("mod template: gone",)),
        ((*BEFORE[1:], BEFORE[0]), ("order of the steps: vllm, python packages, Dockerfile, mod template, base",)),
        (changed("Dockerfile", text="2"), ("Dockerfile: changed",)),
    ],
)
def test_what_differs_is_said_in_the_order_of_the_steps(after: tuple[Step, ...], message: tuple[str, ...]) -> None:
    assert explain_changes(BEFORE, after) == message


def test_a_dockerfile_that_follows_from_another_input_is_not_named() -> None:
    after = tuple(Step("Dockerfile", {"text": "2"}) if step.name == "Dockerfile" else step for step in BEFORE[:-1])
    assert explain_changes(BEFORE, after) == ("mod template: gone",)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"steps": [{"name": "x"}]}'])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        read_steps(text)


def test_steps_are_kept_up_to_the_first_that_differs() -> None:
    assert common_steps(BEFORE, BEFORE) == len(BEFORE)
    assert common_steps(BEFORE, changed("vllm", version="0.20.0")) == 1
    assert common_steps(BEFORE, BEFORE[:2]) == 2
    assert common_steps((), BEFORE) == 0

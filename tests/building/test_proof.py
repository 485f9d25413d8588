"""The builds that are proven: those that may behave otherwise than the number before."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.definitions import mod
from builder.lab.prove import prove
from builder.plan.plan_model import Step
from tests import projects

STEPS = (Step("base", {"image": "debian"}), Step("vllm", {"commit": "a"}), Step("mod speed", {"content": "1"}))


def with_step(name: str, **takes: str) -> tuple[Step, ...]:
    return (*(step for step in STEPS if step.name != name), Step(name, takes))


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (STEPS, False),
        (with_step("vllm", commit="b"), True),
        (with_step("base", image="other"), True),
        (with_step("mod speed", content="2"), False),
        (with_step("mod chat", content="1"), True),
        (STEPS[:2], True),
    ],
)
def test_what_may_behave_otherwise(tmp_path: Path, steps: tuple[Step, ...], *, expected: bool) -> None:
    project = projects.make(tmp_path)
    projects.add_mod(tmp_path, "speed", "echo faster > /speed\n", {"note.txt": "a kernel"})
    projects.add_mod(tmp_path, "chat", "cp chat.jinja /chat.jinja\n", {"chat.jinja": "{{ messages }}"})
    mods = [mod.load_mod(project, step.name[4:]) for step in steps if step.name.startswith("mod ")]
    assert prove.may_differ(STEPS, steps, mods) is expected


def test_the_first_image_has_nothing_before_it() -> None:
    assert prove.may_differ((), STEPS, ())

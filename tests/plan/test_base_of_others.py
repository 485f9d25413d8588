"""Plans of definitions on images that others build."""

from __future__ import annotations

from dataclasses import replace

import yaml

from builder.lab import changes
from builder.lock.model import IncludedPin, LockedPackage, Pins, Version
from builder.plan import making, rules
from tests.plan import shipped


def test_what_the_base_brings_is_in_the_plan() -> None:
    plan = shipped.plan("node", "base", "linux/arm64")
    steps = {step.name: step.takes for step in plan.steps}
    assert steps["base packages"] == {"torch": "2.13.0+cu130"}
    assert steps["vllm"] == {"version": "0.23.1rc1.dev12+gaaaaaaa", "commit": "a" * 40}
    assert plan.versions["vllm"] == Version("0.23.1rc1.dev12+gaaaaaaa", "a" * 40)
    metadata = yaml.safe_load(plan.files["build-metadata.yaml"].content)
    assert metadata["vllm_commit"] == "a" * 40
    assert metadata["build_date"] == shipped.DATE  # that of the base: nothing else has a date
    assert "find-links" not in plan.files["Dockerfile"].content.decode()


def test_labels_give_the_pins_back_without_the_packages() -> None:
    plan = shipped.plan("node", "base", "linux/arm64")
    read = making.read_labels(plan.targets["image"]["labels"])
    assert read
    pins = read.pins["node"]
    assert pins.sources == plan.pins.sources
    assert plan.pins.base
    assert pins.base == replace(plan.pins.base, packages=())


def test_another_base_is_told_by_what_is_inside() -> None:
    definition = shipped.plan("node", "base", "linux/arm64").definition
    before = shipped.pins(definition)
    assert before.base
    torch = LockedPackage("torch", "2.14.0", ())
    moved = IncludedPin("sha256:" + "c" * 64, "0.24.0", "c" * 40)
    after = Pins(
        replace(before.base, resolved=moved.base, packages=(torch,)), {**before.sources, "vllm": moved}, None, None
    )
    assert after.base
    brought = ({package.name: package.version for package in base.packages} for base in (before.base, after.base))
    assert [(p.name, p.kind, p.before, p.after) for p in changes.package_changes(*brought)] == [
        ("torch", "up", "2.13.0+cu130", "2.14.0")
    ]
    steps = shipped.plan("node", "base", "linux/arm64").steps
    others = tuple(replace(step, takes={"torch": "2.14.0"}) if step.name == "base packages" else step for step in steps)
    assert rules.explain_changes(steps, others) == ("torch: 2.13.0+cu130 → 2.14.0",)

"""Explanation of why a build differs from an earlier one: the inputs that differ, in the order of the steps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from builder import humanize
from builder.plan.model import Step

if TYPE_CHECKING:
    from collections.abc import Sequence


def read_steps(text: str) -> tuple[Step, ...]:
    """The steps in a build directory's plan.json. Raises ValueError, KeyError or TypeError where it is not one."""
    steps = tuple(Step(step["name"], step["takes"]) for step in json.loads(text)["steps"])
    for step in steps:
        if not isinstance(step.takes, dict) or not all(
            isinstance(item, str) for item in (step.name, *step.takes.values())
        ):
            raise TypeError("a step has a name, and takes text")
    return steps


def common_steps(before: Sequence[Step], after: Sequence[Step]) -> int:
    """The number of leading steps that ``before`` and ``after`` share: a step is the same only after the same steps."""
    pairs = zip(before, after, strict=False)
    return next((number for number, (old, new) in enumerate(pairs) if old != new), min(len(before), len(after)))


def changes(before: Sequence[Step], after: Sequence[Step]) -> tuple[str, ...]:
    """One line for each input that differs, in the order of the steps; empty if none does.

    The rendered Dockerfile and the metadata follow from the other inputs: they are named only if nothing else explains
    the difference.
    """
    old = {step.name: step.takes for step in before}
    new = {step.name: step.takes for step in after}
    lines: list[str] = []
    for name in (*new, *(name for name in old if name not in new)):
        if _own_name(name) in _DERIVED:
            continue
        if name not in old:
            lines.append(f"{name}: new")
        elif name not in new:
            lines.append(f"{name}: gone")
        else:
            lines.extend(_differences(name, old[name], new[name]))
    order_old, order_new = ([s.name for s in steps if s.name in old and s.name in new] for steps in (before, after))
    if order_old != order_new:
        lines.append(f"order of the steps: {', '.join(order_new)}")
    if not lines:
        lines = [f"{name}: changed" for name in new if _own_name(name) in _DERIVED and old.get(name) != new[name]]
    return tuple(lines)


_DERIVED = ("Dockerfile", "build-metadata.yaml")


def _own_name(name: str) -> str:
    """A step's name without the definition that it belongs to in a chain: ``mod x`` for ``dflash: mod x``."""
    return name.rpartition(": ")[2]


def _differences(name: str, old: dict[str, str], new: dict[str, str]) -> list[str]:
    if _own_name(name).startswith("mod ") and old != new:
        return [f"{name}: changed"]
    lines: list[str] = []
    for key in (*new, *(key for key in old if key not in new)):
        before, after = humanize.digest(old.get(key, "")), humanize.digest(new.get(key, ""))
        if old.get(key) == new.get(key):
            continue
        if _own_name(name) in {"base packages", "python packages", "build packages"}:
            lines.append(f"{key}: {_version_change(old.get(key, ''), new.get(key, ''))}")
        else:
            lines.append(f"{name} {key}: {before or 'nothing'} → {after or 'nothing'}")
    return lines


def _version_change(old: str, new: str) -> str:
    before, after = old.partition(" ")[0], new.partition(" ")[0]
    if before == after:
        return f"{after}, other files"
    return f"{before or 'not there'} → {after or 'gone'}"

"""A job of many steps with many tools, made anew for each session of the probe of tool calls.

Each step needs one call; the result of the call tells the next one, with a ticket that has to be passed on, so that no
call can be guessed, and each answer counts for all that follow. Tools differ in name and in the types of what they
take, and most of those offered are never needed.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

_VERBS = ("read", "list", "create", "update", "archive", "compare", "export", "check", "merge", "rename")
_NOUNS = ("invoice", "parcel", "meter", "ticket", "sensor", "contract", "route", "report")
_PLACES = ("Bern", "Århus", "São Paulo", "Kraków", "Nagoya", "Québec", "Tromsø")

Arguments = dict[str, Any]


@dataclass(frozen=True)
class JobStep:
    """A call that is due: the tool's name and exactly these arguments."""

    tool: str
    arguments: Arguments

    @property
    def instruction(self) -> str:
        """The step in words."""
        values = ", ".join(
            f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in self.arguments.items()
        )
        return f"call the tool {self.tool} once, with exactly these arguments: {values}"


@dataclass(frozen=True)
class ToolJob:
    """The steps of a job, and the tools that are offered for it (as the OpenAI API takes them)."""

    tools: tuple[dict[str, Any], ...]
    steps: tuple[JobStep, ...]

    @property
    def task(self) -> str:
        """The message that the job begins with."""
        return (
            f"This is a job of {len(self.steps)} steps. Each step is one tool call. The result of a call tells the next"
            " step; make that call then, without writing anything. When a result says that the job is done, make no"
            f" further call and answer with the word DONE.\nThe first step: {self.steps[0].instruction}."
        )

    def result(self, step: int) -> str:
        """The result of the call of a step, counted from 0."""
        if step + 1 == len(self.steps):
            return json.dumps({"ok": True, "next": "The job is done: make no further call, answer with the word DONE."})
        following = self.steps[step + 1].instruction
        return json.dumps({"ok": True, "next": f"Step {step + 2}: {following}."}, ensure_ascii=False)


def make(tools: int, steps: int, seed: int) -> ToolJob:
    """A job of ``steps`` steps for which so many ``tools`` are offered; the same one for the same ``seed``."""
    numbers = random.Random(seed)  # noqa: S311
    names = [f"{verb}_{noun}" for noun in _NOUNS for verb in _VERBS]
    chosen = [names[number % len(names)] + (f"_{number}" if number >= len(names) else "") for number in range(tools)]
    numbers.shuffle(chosen)
    return ToolJob(
        tuple(_tool(name) for name in sorted(chosen)),
        tuple(JobStep(numbers.choice(chosen), _arguments(numbers)) for _ in range(steps)),
    )


def _arguments(numbers: random.Random) -> Arguments:
    return {
        "ticket": f"T-{numbers.randrange(16**8):08x}",
        "place": numbers.choice(_PLACES),
        "count": numbers.randrange(1, 1000),
        "urgent": numbers.random() < 0.5,
        "codes": [f"{numbers.randrange(100):02d}" for _ in range(numbers.randrange(1, 4))],
    }


def _tool(name: str) -> dict[str, Any]:
    verb, _, noun = name.partition("_")
    properties = {
        "ticket": {"type": "string", "description": "The ticket of this step."},
        "place": {"type": "string", "description": "The place that it is for."},
        "count": {"type": "integer", "description": "How many."},
        "urgent": {"type": "boolean", "description": "True where it cannot wait."},
        "codes": {"type": "array", "items": {"type": "string"}, "description": "The codes, in order."},
    }
    function = {
        "name": name,
        "description": f"Tool to {verb} the {noun.replace('_', ' ')} of a place.",
        "parameters": {"type": "object", "properties": properties, "required": list(properties)},
    }
    return {"type": "function", "function": function}

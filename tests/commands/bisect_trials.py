"""Bisections of planted faults, to their end or killed after each answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.engine import containers, images
from builder.lab.bisect import search
from builder.numbers import claims
from tests.commands import planted_faults
from tests.conftest import command

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.engine.client import Endpoint
    from tests.commands.planted_faults import Fault, Planting


_LONGEST = 1200.0


@dataclass(frozen=True)
class TrialAnswer:
    """The answer of a bisection, whether it is right, its steps beside the ends, and how often it was killed."""

    axis: str
    unit: str
    is_right: bool
    steps: int
    seconds: float
    kills: int = 0


def arguments(fault: Fault, folder: Path) -> list[str]:
    """The command that looks for a fault."""
    script = str(planted_faults.script(fault, folder))
    target = ["chat"] if fault.serves else ["trial"]
    return ["bisect", *target, "--good", "1", "--bad", "3" if fault.name == "a mod" else "2", "--run", script, "--json"]


def look(fault: Fault, planting: Planting, folder: Path) -> TrialAnswer:
    """Looks for a fault, and compares the answer with what was planted."""
    began = time.monotonic()
    answer = json.loads(planting.builder(*arguments(fault, folder)))
    return _found(fault, planting, answer, time.monotonic() - began)


def look_killed(fault: Fault, planting: Planting, folder: Path) -> TrialAnswer:
    """The same with a kill -9 of all its processes after each answer."""
    began = time.monotonic()
    answer, kills = run_killed(planting.project, arguments(fault, folder), planting.environ, folder)
    return _found(fault, planting, answer, time.monotonic() - began, kills)


def answers(project: Project) -> int:
    """How many answers a bisection has so far."""
    begun = search.journal_of(project).read()
    return len(begun.done) if begun else 0


def run_killed(
    project: Project,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    folder: Path,
    steps: Callable[[Project], int] = answers,
) -> tuple[dict[str, Any], int]:
    """Runs a bisection, with a kill -9 of all its processes each time that ``steps`` has become more: after each answer
    if nothing else is given. Returns what it prints at its end (``--json``), and how often it was killed."""
    began, kills, last = time.monotonic(), 0, 0
    output = folder / "output"
    while time.monotonic() - began < _LONGEST:
        with output.open("w") as file, subprocess.Popen(
            command(project, *arguments), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL,
            env={**os.environ, **environ}, start_new_session=True,
        ) as process:  # fmt: skip
            while process.poll() is None:
                now = steps(project)
                if now > last:
                    last = now
                    os.killpg(process.pid, signal.SIGKILL)
                    kills += 1
                    break
                time.sleep(0.01)
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, process.returncode
            answer: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
            return answer, kills
    raise AssertionError("it does not end")


def _found(fault: Fault, planting: Planting, answer: dict[str, Any], seconds: float, kills: int = 0) -> TrialAnswer:
    culprits = answer["culprits"]
    axis, unit = (", ".join(each[key] for each in culprits) for key in ("axis", "unit"))
    change = "".join(each["change"] or "" for each in culprits)
    is_right = (
        axis == fault.axis
        and unit.startswith(fault.unit)
        and len(culprits) == 1
        and fault.bad(planting) in {"", culprits[0]["bad"]}
        and not culprits[0]["between"]
        and fault.change in change
        and fault.spared not in change
    )
    return TrialAnswer(axis, unit, is_right, answer["steps"], seconds, kills)


def left_over(endpoint: Endpoint, project: Project) -> list[str]:
    """The candidates, containers and journals that a bisection left."""
    own = claims.project_identity(project).id
    return [
        *(tag for tag in images.image_tags(endpoint) if tag.startswith(f"builder-bisect-{own[:8].lower()}")),
        *(container["Id"] for container in containers.container_listing(endpoint, f"{claims.PROJECT}={own}")),
        *(["the journal"] if search.journal_of(project).read() else []),
        *map(str, project.work.glob("*")),
    ]

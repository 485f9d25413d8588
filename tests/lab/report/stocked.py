"""A project with numbers, pairings, a step back and runs of its own and of others, for tests of the page."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from builder.base.project import Project
from builder.commands import listing
from builder.evidence import run_record, standing
from builder.evidence.run_record import Evidence, Figure
from builder.lock import lock_file, text
from builder.lock.model import ImageName, Lock, Model, NumberedImage, Pairing, Repository, Version
from tests import projects
from tests.evidence.runs import COMMIT, MODEL, bench, proof

if TYPE_CHECKING:
    from pathlib import Path


OTHER = "Org/Other-8B"
NASTY = "<script>alert(1)</script>\"'&\u202e \x1b[31m"
NAMES = tuple(ImageName("small", number) for number in (1, 2, 3))


def image(number: int, **changes: Any) -> NumberedImage:
    facts: dict[str, Any] = {
        "built": f"2026-11-1{number}T22:00:00Z",
        "definition": "small",
        "platform": "linux/arm64",
        "fingerprint": f"sha256:{number:064x}",
        "input_hash": "h",
        "size": 19_000_000_000,
        "versions": {"vllm": Version(f"0.3{number}.0", f"{number:040x}")},
        "mods": {"template": f"sha256:{number:064x}"},
    }
    return NumberedImage(**{**facts, **changes})


def make(root: Path) -> Project:
    """Three numbers; the model was moved to 3 and stepped back to 2."""
    project = projects.make(root)
    numbers = {n: image(n, note=NASTY if n == 1 else "") for n in (1, 2, 3)}
    first, second, third = (Pairing(name, "recipes/chat.yaml", COMMIT) for name in NAMES)
    lock = Lock(images={"small": Repository(4, 2, (3, 1), numbers)})
    bad = replace(third, status="bad", note=NASTY)
    lock = lock.with_model(MODEL, Model(second, (bad, first))).with_model(OTHER, Model(replace(first, recipe=None)))
    projects.write(project.lock, text.dump_lock(lock))
    return project


def add(project: Project, name: ImageName, evidence: Evidence, model: str = MODEL) -> Path:
    """Keeps a run of what there is now."""
    subject = standing.present_subject(project, lock_file.read_lock(project.lock), name, model, evidence.kind)
    machine = evidence.subject.machine
    of_set = listing.present_set(project, evidence.kind, evidence.name) or evidence.set
    own = replace(evidence, subject=replace(subject, machine=machine), set=of_set)
    return run_record.add_run(project, name, own)


def measured(speed: float, **changes: Any) -> Evidence:
    """A benchmark of the project's own."""
    figures = (
        Figure("tg", {"depth": 0, "concurrency": 1}, "tokens/s", "higher", (speed, speed * 1.01, speed * 0.98)),
        Figure("tg", {"depth": 32768, "concurrency": 1}, "tokens/s", "higher", (speed * 0.8, speed * 0.79)),
        Figure("acceptance", {}, "ratio", "higher", (0.712,)),
        Figure("memory_floor", {}, "bytes", "higher", (11.5e9,)),
    )
    return bench(**{"accepted": "", "findings": (), "raw": None, "figures": figures, **changes})


def fill(project: Project) -> Project:
    """Runs of each kind on all numbers."""
    for number, name in enumerate(NAMES, 1):
        add(project, name, proof("pass" if number < 3 else "fail"))
        add(project, name, measured(50.0 + number))
    add(project, NAMES[1], measured(70, name="community", accepted=NASTY))
    return project

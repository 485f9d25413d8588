"""How a plan stands to what has been built: whether it is there already, or else why a build is needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.lock.model import ImageName, Lock
from builder.numbered import plan_file, status
from builder.plan import explain

if TYPE_CHECKING:
    from builder.plan.model import Plan, Step
    from builder.workspace import Workspace


@dataclass(frozen=True)
class Comparison:
    """How a plan stands to what has been built: ``already`` is the number with the same inputs that is still there,
    ``before`` the steps of the number that it is compared with, ``reasons`` why a build is needed."""

    already: ImageName | None
    before: tuple[Step, ...]
    reasons: tuple[str, ...]


def compare(workspace: Workspace, lock: Lock, plan: Plan) -> Comparison:
    """How the plan stands to what has been built: the number with the same inputs that is still there, or else why a
    build is needed."""
    repository = lock.images.get(plan.repository)
    if repository is None or not repository.numbers:
        return Comparison(None, (), ("it is the first image of this repository",))
    same = [number for number, built in repository.numbers.items() if built.input_hash == plan.input_hash]
    if same:
        known, _ = status.states(workspace, lock)
        present = [number for number in same if known[ImageName(plan.repository, number)] == "present"]
        if present:
            return Comparison(ImageName(plan.repository, max(present)), plan.steps, ())
        gone = ImageName(plan.repository, max(same))
        return Comparison(
            None, plan.steps, (f"{gone} was built from the same inputs, but this engine no longer has it",)
        )
    last = ImageName(plan.repository, max(repository.numbers))
    directory = workspace.project.build_directory(last.repository, last.number)
    before = plan_file.read(directory)
    if before is None:
        unreadable = workspace.project.relative(directory / plan_file.FILE)
        return Comparison(None, (), (f"its inputs are not those of {last}; {unreadable} cannot be read to tell more",))
    return Comparison(None, before, explain.changes(before, plan.steps))

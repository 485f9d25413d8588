"""The filling of the matrix: what was never tried, or is stale, is proven, and measured where a server may run.

One proof at a time, the cheapest first. Each is kept as it ends, so that whatever ends this loses one at most, and the
same call goes on with what is left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.commands import bench, matrix, prove
from builder.definitions import configuration, serving
from builder.definitions.recipes import finding
from builder.engine.client import versions
from builder.engine.client.errors import EngineHTTPError
from builder.errors import BuilderError, EngineError
from builder.events import Message
from builder.evidence import filling
from builder.evidence.matrix import proof_of
from builder.lock import reading
from builder.numbered import status
from builder.serving import lookup

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.evidence.filling import MissingProof
    from builder.evidence.matrix import Matrix
    from builder.lock.model import ImageName, Lock
    from builder.project import Project
    from builder.workspace import Workspace


@dataclass(frozen=True)
class FillPlan:
    """The proofs that are to be tried, in their order; ``matrix`` is the table that lacks them, ``left_out`` says what
    cannot be tried here, and why. ``profile`` is that of the benchmarks, empty where there are to be none."""

    matrix: Matrix
    steps: tuple[MissingProof, ...]
    left_out: tuple[str, ...]
    profile: str = ""


@dataclass(frozen=True)
class FilledStep:
    """A proof that was tried: the verdict of its run, or the ``problem`` that kept it from being tried."""

    step: MissingProof
    verdict: str = ""
    problem: str = ""


def plan(workspace: Workspace, models: Sequence[str] = (), images: Sequence[str] = (), profile: str = "") -> FillPlan:
    """Says what `run` would try. ``profile`` is that of the benchmarks, which are left out where it is empty.

    Raises what `matrix.run` does, UsageError for a profile that there is not, EngineError where no engine answers.
    """
    table = matrix.run(workspace, models, images)
    lock = reading.of(workspace.project)
    left_out: list[str] = []
    present = _present(workspace, lock, table, left_out)
    served_models = _with_recipe(workspace.project, lock, table, left_out)
    steps = filling.missing(replace(table, models=served_models), (filling.PROVE,), present)
    if profile:
        name = configuration.load(workspace.project).profile(profile).name
        served = _served(workspace, served_models, left_out)
        may_serve = [image for image in present if _may_serve(workspace, lock, image, left_out)]
        idle = replace(table, models=tuple(model for model in served_models if model not in served))
        steps += filling.missing(idle, (proof_of("bench", name),), may_serve)
    return FillPlan(table, filling.cheapest_first(lock, steps), tuple(left_out), profile)


def run(workspace: Workspace, planned: FillPlan) -> Iterator[FilledStep]:
    """Tries each step of a plan, and yields what came of it. A step that cannot be tried does not keep the next from
    it; an engine that does not answer ends all."""
    total = len(planned.steps)
    for number, step in enumerate(planned.steps, 1):
        workspace.report(Message(f"[{number}/{total}] {step.proof}: {step.model} on {step.image}"))
        try:
            yield FilledStep(step, _try(workspace, step, planned.profile))
        except BuilderError as error:
            if isinstance(error, EngineError) and not isinstance(error, EngineHTTPError):
                raise
            yield FilledStep(step, problem=error.message.splitlines()[0])


def _try(workspace: Workspace, step: MissingProof, profile: str) -> str:
    if step.kind == "prove":
        return prove.run(workspace, str(step.image), [step.model])[0].evidence.verdict
    return bench.run(workspace, step.model, profile, str(step.image)).outcome.verdict


def _present(workspace: Workspace, lock: Lock, table: Matrix, left_out: list[str]) -> list[ImageName]:
    """The images that the engine has as images.lock records them."""
    states, _ = status.states(workspace, lock)
    absent = [image for image in table.images if states[image] != "present"]
    left_out += [f"{image}: {states[image]}" for image in absent]
    return [image for image in table.images if states[image] == "present"]


def _with_recipe(project: Project, lock: Lock, table: Matrix, left_out: list[str]) -> tuple[str, ...]:
    """The models of which a recipe tells how they are served."""
    with_recipe = tuple(model for model in table.models if has_recipe(project, lock, model))
    left_out += [f"{model}: no recipe tells how it is served" for model in table.models if model not in with_recipe]
    return with_recipe


def has_recipe(project: Project, lock: Lock, model: str) -> bool:
    """True if images.lock names a recipe of the model that is there."""
    if model not in lock.models:
        return False
    pairings = (lock.models[model].pairing, *lock.models[model].previous)
    return any(each.recipe and finding.recorded(project, each.recipe) for each in pairings)


def _served(workspace: Workspace, models: Sequence[str], left_out: list[str]) -> frozenset[str]:
    """The models that are being served: their servers are not taken away for a measurement."""
    running = lookup.find_all(workspace)
    served = [model for model in models if lookup.pick(workspace.project, running, model)]
    left_out += [f"{model}: it is being served, so no benchmark of it" for model in served]
    return frozenset(served)


def _may_serve(workspace: Workspace, lock: Lock, image: ImageName, left_out: list[str]) -> bool:
    """True if a server can run from an image here: its definition wants no GPU, or the engine has one."""
    record = lock.image(image)
    wants_gpu = serving.of(workspace.project, record.definition if record else "").gpus != "none"
    if not wants_gpu or versions.has_nvidia(workspace.engine):
        return True
    left_out.append(f"{image}: the engine has no GPU, so no benchmark")
    return False

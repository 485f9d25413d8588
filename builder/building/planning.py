"""The second step of a build: the plan of each image, compared with the images that exist."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.events import Message
from builder.lock.model import ImageName, Lock
from builder.numbered import plan_file, status
from builder.pinning import vendored
from builder.plan import explain
from builder.plan.make import ImageInputs, make
from builder.serving import model_revision

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.building.resolution import Resolution, ResolvedTarget
    from builder.definitions.recipes.recipe import Recipe
    from builder.plan.model import Plan, Step
    from builder.workspace import Workspace


@dataclass(frozen=True)
class Comparison:
    """A plan compared with the images that exist: ``existing`` is the number with the same inputs that the engine still
    has, ``before`` the steps of the number that the plan is compared with, ``reasons`` why a build is needed."""

    existing: ImageName | None
    before: tuple[Step, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class PlannedImage:
    """The plan of one target, the vendored patches that it needs by file, and its comparison with the images that
    exist. ``revisions`` are the known ones of its models; ``lock`` is images.lock as it was read."""

    plan: Plan
    recipe: Recipe | None
    models: tuple[str, ...]
    revisions: Mapping[str, str]
    lock: Lock
    patches: Mapping[str, bytes]
    comparison: Comparison

    @property
    def unpaired(self) -> tuple[str, ...]:
        """The models that no image serves yet; none if the existing image is marked bad."""
        existing = self.comparison.existing
        image = self.lock.image(existing) if existing else None
        if image and image.status == "bad":
            return ()
        return tuple(model for model in self.models if model not in self.lock.models)

    def is_paired(self, model: str, name: ImageName) -> bool:
        """True if ``name`` serves the model already."""
        return model in self.lock.models and self.lock.models[model].pairing.image == name

    @property
    def kept_steps(self) -> int:
        """The number of first steps that are the same as in the number that it is compared with."""
        return explain.common_steps(self.comparison.before, self.plan.steps)

    @property
    def is_recorded(self) -> bool:
        """True if images.lock records everything about the existing image: all pairings, and the pins as they are
        now."""
        return not self.unpaired and all(
            self.lock.pins_of(part.definition.name, part.definition.platform) == part.pins for part in self.plan.chain
        )


def plan_all(workspace: Workspace, resolution: Resolution) -> tuple[PlannedImage, ...]:
    """Plans every target. Raises FileProblemsError where a mod's patch does not apply to what is pinned, for an image
    that is to be built and as far as the files can be reached."""
    planned: list[PlannedImage] = []
    lock = resolution.lock
    for resolved in resolution.targets:
        image = _plan(workspace, lock, resolution, resolved)
        _dry_run(workspace, image)
        planned.append(image)
        for part in image.plan.chain:
            lock = lock.with_pins(part.definition.name, part.definition.platform, part.pins)
    return tuple(planned)


def split(
    planned: Sequence[PlannedImage], *, force: bool
) -> tuple[list[tuple[PlannedImage, ImageName]], list[PlannedImage]]:
    """Parts the plans with nothing to build, each with the number that is there, from those to build: all, if
    ``force``."""
    existing = [(image, image.comparison.existing) for image in planned]
    return (
        [(image, number) for image, number in existing if number is not None and not force],
        [image for image, number in existing if number is None or force],
    )


def _plan(workspace: Workspace, lock: Lock, resolution: Resolution, resolved: ResolvedTarget) -> PlannedImage:
    recipe, models = resolved.recipe, resolved.models
    plan: Plan | None = None
    patches: dict[str, bytes] = {}
    for definition, mods in zip(resolved.chain, resolved.mods, strict=True):
        completed, is_last = resolution.pins[definition.name], definition is resolved.chain[-1]
        patches.update(completed.patches)
        own_patches = vendored.load(workspace.project, definition.name, completed.pins, patches)
        inputs = ImageInputs(definition, completed.pins, own_patches, mods)
        plan = make(inputs, plan, recipe if is_last else None, models if is_last else ())
    if plan is None:
        raise ValueError("a chain holds at least one definition")
    revisions = {
        model: model_revision.to_record(workspace.project, workspace.environment, model, recipe) for model in models
    }
    return PlannedImage(
        plan=plan,
        recipe=recipe,
        models=models,
        revisions={model: revision for model, revision in revisions.items() if revision},
        lock=lock,
        patches=patches,
        comparison=_compare(workspace, lock, plan),
    )


def _compare(workspace: Workspace, lock: Lock, plan: Plan) -> Comparison:
    repository = lock.images.get(plan.repository)
    if repository is None or not repository.numbers:
        return Comparison(None, (), ("it is the first image of this repository",))
    same = [number for number, built in repository.numbers.items() if built.input_hash == plan.input_hash]
    if same:
        states, _ = status.states(workspace, lock)
        present = [number for number in same if states[ImageName(plan.repository, number)] == "present"]
        if present:
            return Comparison(ImageName(plan.repository, max(present)), plan.steps, ())
        gone = ImageName(plan.repository, max(same))
        reason = f"{gone} was built from the same inputs, but this engine no longer has it"
        return Comparison(None, plan.steps, (reason,))
    built_here = [number for number, image in repository.numbers.items() if image.adopted is None]
    if not built_here:
        return Comparison(None, (), ("it is the first one that is built here: the others were adopted",))
    last = ImageName(plan.repository, max(built_here))
    directory = workspace.project.build_directory(last.repository, last.number)
    before = plan_file.read_if_possible(directory)
    if before is None:
        unreadable = workspace.project.relative(directory / plan_file.FILE)
        return Comparison(None, (), (f"its inputs are not those of {last}; {unreadable} cannot be read to tell more",))
    return Comparison(None, before, explain.changes(before, plan.steps))


def _dry_run(workspace: Workspace, image: PlannedImage) -> None:
    if image.comparison.existing or not (image.recipe or any(mod.patches for mod in image.plan.mods)):
        return
    from builder.building import mod_dry_run, vllm_choices
    from builder.pinning import packages

    _pull_bases(workspace, image.plan)
    access = packages.access(workspace.project, workspace.environment, lambda text: workspace.report(Message(text)))
    definitions = []
    for part in image.plan.chain:
        patches = vendored.load(workspace.project, part.definition.name, part.pins, image.patches)
        definitions.append(packages.PinnedDefinition(part.definition, part.pins, patches))
    mod_dry_run.require_applicable(
        image.plan.mods, lambda package: packages.pinned(access, definitions, package), workspace.report
    )
    vllm = packages.pinned(access, definitions, "vllm")
    if image.recipe and vllm:
        vllm_choices.require_known(workspace.project, image.recipe, vllm)


def _pull_bases(workspace: Workspace, plan: Plan) -> None:
    """Pulls a base that brings packages, for their files: the build on it needs it anyway, where this engine builds."""
    from builder.pinning import base_contents

    base = plan.chain[0].pins.base
    if base and base.packages and not workspace.engine.builds_elsewhere:
        # Where it cannot be pulled, the patches are not tried, which is reported; BuildKit says why.
        with suppress(SourceError):
            base_contents.ensure_present(workspace.engine, base, plan.definition.platform, workspace.report)

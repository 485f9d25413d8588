"""Thinking a build through before anything is done: load, pin, plan, and compare with what is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder import chain as chains
from builder import frozen as frozen_diffs
from builder import rendered, status
from builder.definitions import image, mod, target
from builder.lock import reading
from builder.lock.model import ImageName, Lock
from builder.plan import explain
from builder.plan.make import Ingredients, make

if TYPE_CHECKING:
    from builder.definitions.mod import Mod
    from builder.definitions.recipe import Recipe
    from builder.engine.endpoint import Endpoint
    from builder.events import Report
    from builder.plan.model import Plan, Step
    from builder.project import Project


@dataclass(frozen=True)
class Request:
    """What the person asked for. ``mods`` and ``models`` come on top of the recipe's own; ``update`` maps the sources
    to resolve anew to the git ref to take instead of the definition's, or None."""

    target: str
    mods: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    update: chains.Update = field(default_factory=dict)
    overrides: image.Overrides = field(default_factory=image.Overrides)
    locked: bool = False
    force: bool = False
    promote: bool = True


@dataclass(frozen=True)
class Comparison:
    """How a plan stands to what has been built: ``already`` is the number with the same inputs that is still there,
    ``before`` the steps of the number that it is compared with, ``reasons`` why a build is needed."""

    already: ImageName | None
    before: tuple[Step, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Prepared:
    """A request thought through: the plan, the diffs frozen for it, and how it compares with what has been built."""

    request: Request
    plan: Plan
    recipe: Recipe | None
    models: tuple[str, ...]
    lock: Lock
    frozen: Mapping[str, bytes]
    rendered: Mapping[str, str]
    compared: Comparison

    @property
    def unpaired(self) -> tuple[str, ...]:
        """The models of the request that no image serves yet; none where what is already built is marked bad."""
        already = self.compared.already
        image = self.lock.image(already) if already else None
        if image and image.status == "bad":
            return ()
        return tuple(model for model in self.models if model not in self.lock.models)

    @property
    def to_record(self) -> bool:
        """Whether images.lock lacks something even where nothing is to be built: a pairing, or pins as asked now."""
        return bool(self.unpaired) or any(
            self.lock.pins_of(one.definition.name, one.definition.platform) != one.pins for one in self.plan.chain
        )


def prepare_all(
    project: Project, endpoint: Endpoint, requests: Sequence[Request], environ: Mapping[str, str], report: Report
) -> tuple[Prepared, ...]:
    """Loads, pins and plans; nothing is written. What one resolves holds for those after it. Raises what the files, the
    lock or a source have to say."""
    lock = reading.read(project.lock)
    found: list[Prepared] = []
    for request in requests:
        frozen = {sha256: diff for earlier in found for sha256, diff in earlier.frozen.items()}
        prepared = _prepare(project, endpoint, lock, request, frozen, environ, report)
        found.append(prepared)
        for one in prepared.plan.chain:
            lock = lock.with_pins(one.definition.name, one.definition.platform, one.pins)
    return tuple(found)


def _prepare(
    project: Project,
    endpoint: Endpoint,
    lock: Lock,
    request: Request,
    frozen_before: Mapping[str, bytes],
    environ: Mapping[str, str],
    report: Report,
) -> Prepared:
    from builder.engine import versions

    meant = target.find(project, request.target)
    host = versions.platform(endpoint)
    chain = image.chain(project, meant.definition, host, request.overrides)
    recipe = meant.recipe
    models = tuple(dict.fromkeys([*([recipe.model] if recipe and recipe.model else []), *request.models]))
    completed = chains.complete(project, endpoint, lock, chain, request.update, environ, report, locked=request.locked)
    plan: Plan | None = None
    frozen = dict(frozen_before)
    fresh: dict[str, str] = {}
    for definition, one in zip(chain, completed, strict=True):
        last = definition is chain[-1]
        asked = (*definition.mods, *((*(recipe.mods if recipe else ()), *request.mods) if last else ()))
        frozen.update(one.frozen)
        diffs = frozen_diffs.load(project, definition.name, one.pins, frozen)
        mods = _mods(project, asked, plan)
        ingredients = Ingredients(definition, one.pins, diffs, mods, rendered.remembering(project, fresh))
        plan = make(ingredients, plan, recipe if last else None, models if last else ())
    if plan is None:
        raise ValueError("a chain holds at least one definition")
    compared = _compare(project, endpoint, lock, plan)
    return Prepared(request, plan, recipe, models, lock, frozen, fresh, compared)


def _mods(project: Project, asked: tuple[str, ...], below: Plan | None) -> tuple[Mod, ...]:
    """Each mod once, in the order asked for; one that the image below already carries is not baked again."""
    baked = {mod.name for mod in below.mods} if below else set()
    names = dict.fromkeys(mod.name_of(name) for name in asked)
    return tuple(mod.load(project, name) for name in names if name not in baked)


def _compare(project: Project, endpoint: Endpoint, lock: Lock, plan: Plan) -> Comparison:
    """How the plan stands to what has been built: the number with the same inputs that is still there, or else why a
    build is needed."""
    repository = lock.images.get(plan.repository)
    if repository is None or not repository.numbers:
        return Comparison(None, (), ("it is the first image of this repository",))
    same = [number for number, built in repository.numbers.items() if built.input_hash == plan.input_hash]
    if same:
        known, _ = status.states(project, endpoint, lock)
        present = [number for number in same if known[ImageName(plan.repository, number)] == "present"]
        if present:
            return Comparison(ImageName(plan.repository, max(present)), plan.steps, ())
        gone = ImageName(plan.repository, max(same))
        return Comparison(
            None, plan.steps, (f"{gone} was built from the same inputs, but this engine no longer has it",)
        )
    last = ImageName(plan.repository, max(repository.numbers))
    steps_file = project.builds / last.repository / str(last.number) / "plan.json"
    try:
        before = explain.read_steps(steps_file.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError):
        unreadable = project.relative(steps_file)
        return Comparison(None, (), (f"its inputs are not those of {last}; {unreadable} cannot be read to tell more",))
    return Comparison(None, before, explain.changes(before, plan.steps))

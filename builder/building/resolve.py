"""The first two steps of a build: turn the request into plans, and compare each plan with the existing images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from builder.base.errors import LockError, SourceError, UsageError
from builder.base.events import Message
from builder.base.values import dataclass, replace
from builder.building import mod_choice
from builder.definitions import build_target, image, mod, recipe_problems
from builder.engine import machine
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock
from builder.numbers import build_directory, status
from builder.pins import pinning, resolver, vendored
from builder.plan import rules
from builder.plan.making import ImageInputs, make_plan
from builder.serving import model_weights, selection

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.building.request import BuildRequest
    from builder.definitions.image import ImageDefinition
    from builder.definitions.mod import Mod
    from builder.definitions.recipe import Recipe
    from builder.lock.model import Pins
    from builder.numbers.workspace import Workspace
    from builder.plan.plan_model import Plan, Step


_MOST_NAMES = 3  # in an error; all of them are also reported


def plan_images(workspace: Workspace, request: BuildRequest) -> tuple[PlannedImage, ...]:
    """Reads the targets' files, resolves missing pins, and plans every target. Each source is queried once, and nothing
    is written. Raises FileProblemsError with all problems in the files, or if the patch of a mod does not apply to the
    pinned version; LockError if images.lock is damaged, or if a ``locked`` request lacks a pin; SourceError if a source
    cannot be resolved; and UsageError."""
    project = workspace.project
    lock = lock_file.read_project_lock(project)
    targets = [
        (recipe, chain, mod_choice.load_mods(project, chain, recipe, request.mods))
        for recipe, chain in _targets(workspace, lock, request)
    ]
    mod.require_templates({mod.name: mod for *_, mods in targets for own in mods for mod in own}.values())
    for recipe, _, mods in targets:
        for message in mod_choice.left_out(project, recipe, mods) if recipe else ():
            workspace.report(Message(message))
    pins = _complete_pins(workspace, lock, [chain for _, chain, _ in targets], request)
    complete = []
    for recipe, chain, mods in targets:
        own_pins = [pins[definition.name].pins for definition in chain]
        ordered = mod_choice.arrange_mods(project, chain, mods, own_pins)
        if any(mod.packages for own in ordered for mod in own):
            mod_choice.check_mod_versions(chain, ordered, own_pins)
        complete.append((recipe, chain, mod_choice.fetch_mod_files(workspace, ordered)))
    planned: list[PlannedImage] = []
    for recipe, chain, mods in complete:
        own = [recipe.model] if recipe and recipe.model else []
        models = tuple(dict.fromkeys([*own, *request.models]))
        image = _plan(workspace, lock, recipe, models, [*zip(chain, mods, strict=True)], pins)
        _dry_run(workspace, image)
        planned.append(image)
        for part in image.plan.chain:
            lock = lock.with_pins(part.definition.name, part.definition.platform, part.pins)
    return tuple(planned)


def _targets(
    workspace: Workspace, lock: Lock, request: BuildRequest
) -> list[tuple[Recipe | None, tuple[ImageDefinition, ...]]]:
    """The recipe of each target, if any, and its definitions, the base first."""
    project = workspace.project
    targets = [_target(project, lock, text) for text in request.targets]
    for named in targets:
        if named.recipe and named.recipe.number:
            message = f"{named.recipe.file} names the number {named.recipe.container}, but a build makes a new number"
            hint = f"to build the next number, name the repository alone: `container: {named.recipe.repository}`"
            raise UsageError(message, hint=hint)
    definitions = [build_target.definition_of(project, named) for named in targets]
    recipe_problems.require_buildable(project, (named.recipe for named in targets if named.recipe))
    overrides = image.Overrides(request.platform, request.settings)
    platform = machine.platform(workspace.engine)
    all_chains = [image.load_chain(project, definition, platform, overrides) for definition in definitions]
    if request.locked and request.update:
        raise UsageError("`--locked` uses the existing pins, but `--update` resolves pins again: use only one option")
    for chain in all_chains if request.locked else ():
        refuse_stale(lock, chain, request.platform)
    return [(named.recipe, chain) for named, chain in zip(targets, all_chains, strict=True)]


def _target(project: Project, lock: Lock, text: str) -> build_target.Target:
    """The target called ``text``. A model means the recipe that serves it, as in every command."""
    paired = lock.models.get(text)
    if not (paired and paired.pairing.recipe):
        return build_target.find_target(project, text)
    return build_target.of_recipe(project, selection.recipe_of_model(project, lock, text))


def _complete_pins(
    workspace: Workspace, lock: Lock, all_chains: Sequence[Chain], request: BuildRequest
) -> dict[str, pinning.ResolvedPins]:
    pins = resolve_chains(workspace, lock, all_chains, request.update)
    if faults := [fault for completed in pins.values() for fault in completed.faults]:
        raise pinning.error_of(faults)
    say_older(workspace, lock, all_chains, pins, request)
    completed = {}
    for definition in _definitions(all_chains):
        own = pins[definition.name]
        # Patches that images.lock pins and the project lacks.
        fetched = vendored.refetch_pull(workspace.project, definition, own.pins, own.patches, workspace.report)
        completed[definition.name] = replace(own, patches={**own.patches, **fetched})
    return completed


def _definitions(all_chains: Sequence[Chain]) -> tuple[ImageDefinition, ...]:
    return tuple({definition.name: definition for chain in all_chains for definition in chain}.values())


def say_older(
    workspace: Workspace,
    lock: Lock,
    all_chains: Sequence[Chain],
    pins: Mapping[str, pinning.ResolvedPins],
    request: BuildRequest,
) -> None:
    """Reports each package and source that would move to an older version. Raises SourceError unless this is
    allowed."""
    older: list[pinning.OlderVersion] = []
    for definition in _definitions(all_chains):
        before, after = lock.pins_of(definition.name, definition.platform), pins[definition.name].pins
        if before != after:
            older += pinning.versions_between(definition, before, after, request.update)
    for each in older:
        workspace.report(Message(str(each)))
    if older and not request.older:
        names = ", ".join(each.name for each in older[:_MOST_NAMES])
        more = f" and {len(older) - _MOST_NAMES} more" if len(older) > _MOST_NAMES else ""
        message = f"{names}{more} would go back to older versions"
        raise SourceError(message, hint="to accept the older versions: `--allow-older`")


@dataclass(frozen=True)
class Comparison:
    """A plan compared with the existing images. ``existing`` is a number with the same inputs in the engine. ``before``
    are the steps of the number that the plan is compared with. ``reasons`` say why a build is needed."""

    existing: ImageName | None
    before: tuple[Step, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class PlannedImage:
    """The plan of one target, all patches of its sources by SHA-256, and its comparison with the existing images.
    ``revisions`` are the known revisions of its models; ``lock`` is the parsed images.lock."""

    plan: Plan
    recipe: Recipe | None
    models: tuple[str, ...]
    revisions: Mapping[str, str]
    lock: Lock
    patches: Mapping[str, bytes]
    comparison: Comparison

    @property
    def unpaired(self) -> tuple[str, ...]:
        """The models that no image serves yet; empty if the existing image is marked bad."""
        existing = self.comparison.existing
        image = self.lock.image(existing) if existing else None
        if image and image.status == "bad":
            return ()
        return tuple(model for model in self.models if model not in self.lock.models)

    def is_paired(self, model: str, name: ImageName) -> bool:
        return model in self.lock.models and self.lock.models[model].pairing.image == name

    @property
    def kept_steps(self) -> int:
        return rules.common_steps(self.comparison.before, self.plan.steps)

    @property
    def is_recorded(self) -> bool:
        """True if images.lock has all pairings of the existing image, and the present pins."""
        return not self.unpaired and all(
            self.lock.pins_of(part.definition.name, part.definition.platform) == part.pins for part in self.plan.chain
        )


def _plan(
    workspace: Workspace,
    lock: Lock,
    recipe: Recipe | None,
    models: tuple[str, ...],
    chain: Sequence[tuple[ImageDefinition, tuple[Mod, ...]]],
    pins: Mapping[str, pinning.ResolvedPins],
) -> PlannedImage:
    plan: Plan | None = None
    patches: dict[str, bytes] = {}
    for number, (definition, mods) in enumerate(chain, start=1):
        completed, is_last = pins[definition.name], number == len(chain)
        fresh = {**patches, **completed.patches}
        own_patches = vendored.load_vendored(workspace.project, definition.name, completed.pins, fresh)
        patches |= own_patches
        inputs = ImageInputs(definition, completed.pins, own_patches, mods)
        plan = make_plan(inputs, plan, recipe if is_last else None, models if is_last else ())
    if plan is None:
        raise ValueError("a chain holds at least one definition")
    revisions = {
        model: model_weights.to_record(workspace.project, workspace.environment, model, recipe) for model in models
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
        states, _ = status.image_states(workspace, lock)
        present = [number for number in same if states[ImageName(plan.repository, number)] == "present"]
        if present:
            return Comparison(ImageName(plan.repository, max(present)), plan.steps, ())
        gone = ImageName(plan.repository, max(same))
        reason = f"{gone} was built from the same inputs, but this engine does not have it"
        return Comparison(None, plan.steps, (reason,))
    built_here = [number for number, image in repository.numbers.items() if image.adopted is None]
    if not built_here:
        return Comparison(None, (), ("it is the first image that is built here: the others were adopted",))
    last = ImageName(plan.repository, max(built_here))
    directory = workspace.project.build_directory(last.repository, last.number)
    before = build_directory.read_if_possible(directory)
    if before is None:
        unreadable = workspace.project.relative(directory / build_directory.FILE)
        return Comparison(
            None,
            (),
            (f"its inputs differ from the inputs of {last}, but {unreadable} cannot be read to list the differences",),
        )
    return Comparison(None, before, rules.explain_changes(before, plan.steps))


def _dry_run(workspace: Workspace, image: PlannedImage) -> None:
    if image.comparison.existing or not (image.recipe or any(mod.patches for mod in image.plan.mods)):
        return
    from builder.building import vllm_choices
    from builder.pins import packages

    base = image.plan.chain[0].pins.base
    if base and base.packages and not workspace.engine.builds_elsewhere:
        # The dry run reads files of the base, which the build needs anyway. Without it, the patches are reported as not
        # tried; BuildKit reports the reason.
        with suppress(SourceError):
            resolver.ensure_base_present(workspace.engine, base, image.plan.definition.platform, workspace.report)
    access = packages.Access(workspace.project, workspace.environment, lambda text: workspace.report(Message(text)))
    parts = image.plan.chain
    definitions = [packages.PinnedDefinition(part.definition, part.pins, image.patches) for part in parts]
    mod_choice.require_applicable(
        image.plan.mods, lambda package: packages.pinned(access, definitions, package), workspace.report
    )
    vllm = packages.pinned(access, definitions, "vllm")
    if image.recipe and vllm:
        vllm_choices.require_known(workspace.project, image.recipe, vllm)


# The pins of all definitions that a command needs, chain by chain, with the base of each chain first. Each definition
# is resolved once, with the packages that its image inherits from its parents in the chain.

Chain = tuple["ImageDefinition", ...]
"""A definition and its parents, the base first."""

Update = Mapping[str, str | None]
"""The names to resolve again (``vllm``, ``python``), each with the git ref to use, or None for the definition's ref."""


def resolve_chains(
    workspace: Workspace, lock: Lock, chains: Sequence[Chain], update: Update
) -> dict[str, pinning.ResolvedPins]:
    """The pins of every definition in ``chains``, by name. Pins in ``lock`` are kept, except stale pins and the names
    in ``update``. Each source is queried once. See `pinning.resolve_missing`."""
    updates = _update_of_each(chains, update)
    sources = resolver.make_resolver(workspace)
    completed: dict[str, pinning.ResolvedPins] = {}
    for chain in chains:
        inherited: pinning.Inherited = ()
        below = ""
        for definition in chain:
            name = definition.name
            if name not in completed:
                pins, own = lock.pins_of(name, definition.platform), updates[name]
                completed[name] = pinning.ResolvedPins(pins)
                if own or pinning.stale_pins(definition, pins, inherited):
                    completed[name] = pinning.resolve_missing(definition, pins, inherited, sources, own, below)
            closure = completed[name].pins.python
            below = closure.as_of if closure else below
            inherited = _inherited_from(definition, completed[name].pins, inherited)
    return completed


def stale_chain(lock: Lock, chain: Chain) -> dict[str, tuple[str, ...]]:
    names = {}
    inherited: pinning.Inherited = ()
    for definition in chain:
        pins = lock.pins_of(definition.name, definition.platform)
        if stale_here := pinning.stale_pins(definition, pins, inherited):
            names[definition.name] = stale_here
        inherited = _inherited_from(definition, pins, inherited)
    return names


def refuse_stale(lock: Lock, chain: Chain, platform: str | None = None) -> None:
    """Raises LockError if ``chain`` has a missing or stale pin. ``platform`` is the one that the user typed."""
    for definition, names in stale_chain(lock, chain).items():
        message = f"images.lock does not cover {', '.join(sorted(names))} of {definition} on {chain[-1].platform}"
        typed = f" --platform {platform}" if platform else ""
        raise LockError(message, hint=f"run `builder lock {definition}{typed}`, then commit images.lock")


def _inherited_from(definition: ImageDefinition, pins: Pins, inherited: pinning.Inherited) -> pinning.Inherited:
    """The packages that an image inherits from ``definition``; None if its pins are incomplete."""
    if inherited is None or {"python", *definition.sources} & set(pinning.stale_pins(definition, pins, inherited)):
        return None
    below = pinning.with_base(definition, pins, inherited)
    return (*below, *pins.python.packages) if below is not None and pins.python else below


def _update_of_each(chains: Sequence[Chain], update: Update) -> dict[str, dict[str, str | None]]:
    """The part of ``update`` for each definition. A name means the last definition of a chain that has such a source.
    Raises UsageError if no chain has the name."""
    updates: dict[str, dict[str, str | None]] = {definition.name: {} for chain in chains for definition in chain}
    for name, ref in update.items():
        having = [[each for each in chain if name in pinning.pin_names(each)] for chain in chains]
        if not any(having):
            sources = {source for chain in chains for definition in chain for source in pinning.pin_names(definition)}
            targets = list(dict.fromkeys(chain[-1].name for chain in chains))
            message = f"{', '.join(targets)} {'has' if len(targets) == 1 else 'have'} no source `{name}`"
            raise UsageError(message, hint=f"sources: {', '.join(sorted(sources))}; see `sources:` in image.yaml")
        for definitions in filter(None, having):
            updates[definitions[-1].name][name] = ref
    return updates

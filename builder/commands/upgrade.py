"""The upgrade command: new pins, a candidate, its evidence, and the decision; a journal lets it go on after a kill."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder import timestamp
from builder.building.request import BuildRequest
from builder.commands import build, candidate, restart, stop
from builder.commands import run as serving
from builder.comparing import current_build
from builder.definitions import image, image_chain, target
from builder.definitions.recipes.container import LABEL, STOPPING_SECONDS
from builder.engine.client import versions
from builder.errors import BuilderError, ConflictError, NothingToDoError, UsageError
from builder.events import Message
from builder.evidence import store
from builder.lock import reading
from builder.lock.model import ImageName, Lock, Pairing
from builder.numbered import images_lock, pointers, reserved_slots
from builder.numbered.pointers import PointerMove
from builder.pinning import definition_pins
from builder.serving import image_selection, lookup
from builder.serving.preparation import ServeRequest
from builder.serving.running import REQUEST
from builder.storage import regular_file
from builder.suggestions import did_you_mean
from builder.upgrading import journal, steps
from builder.upgrading.steps import (
    BuiltCandidate,
    Measured,
    PointersMoved,
    Proved,
    ServerSettled,
    StepFailed,
    Upgrade,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.recipes.recipe import Recipe
    from builder.evidence.record import Evidence
    from builder.lock.pins import Pins
    from builder.serving.running import RunningServer
    from builder.upgrading.steps import Event
    from builder.workspace import Workspace

_LARGEST_RECORD = 16 << 20


@dataclass(frozen=True)
class UpgradeReport:
    """A finished upgrade: the ``changes`` between the image before and the candidate, what was measured of both in
    words, and the image that the server is on, empty where none runs."""

    subject: str
    upgrade: Upgrade
    changes: tuple[str, ...]
    measured: tuple[str, ...]
    served: str


def run(workspace: Workspace, text: str, update: Mapping[str, str | None]) -> UpgradeReport:
    """Upgrades the model, recipe or definition called ``text``: builds a candidate with the sources of ``update`` (all
    where there are none) resolved anew, proves and measures it, and moves pins and pointers if nothing is missing.

    An upgrade that was interrupted goes on where it was. Whatever goes wrong on the way rejects the candidate and is
    told in the report. Raises UsageError for what cannot be upgraded, ConflictError where another process does so, or
    the interrupted one was for other sources.
    """
    project = workspace.project
    fresh = _begin(workspace, text, update)
    subject = _subject(fresh)
    with journal.locked(project, subject):
        upgrade = journal.read(project, subject)
        if upgrade is None:
            upgrade = fresh
            journal.write(project, subject, upgrade)
        elif update and dict(update) != dict(upgrade.update):
            raise ConflictError(
                f"an upgrade of {subject} to other sources was interrupted",
                hint=f"`builder upgrade {text}` goes on with it, `builder upgrade {text} --abort` gives it up",
            )
        else:
            workspace.report(Message(f"going on with the upgrade that was interrupted: {upgrade.stage}"))
            _serve_as_before(workspace, upgrade)
        return _finished(workspace, subject, upgrade)


def abort(workspace: Workspace, text: str) -> UpgradeReport:
    """Gives up an upgrade that was interrupted: the model is served as before, and the candidate stays, with its
    evidence. Raises NothingToDoError where there is none, or its pointers have moved already."""
    project = workspace.project
    subject = _subject(_begin(workspace, text, {}))
    with journal.locked(project, subject):
        upgrade = journal.read(project, subject)
        if upgrade is None:
            raise NothingToDoError(f"no upgrade of {subject} was interrupted")
        if upgrade.stage == "promote" and _is_promoted(reading.of(project), upgrade):
            upgrade = steps.after(upgrade, PointersMoved())
        elif upgrade.stage in {"build", "prove", "measure", "promote"}:
            upgrade = steps.after(upgrade, StepFailed("given up", aborted=True))
        journal.write(project, subject, upgrade)
        return _finished(workspace, subject, upgrade)


def _begin(workspace: Workspace, text: str, update: Mapping[str, str | None]) -> Upgrade:
    """The upgrade that ``text`` means. Raises UsageError where it names nothing, or nothing tells how to build it."""
    project = workspace.project
    lock = reading.of(project)
    recipe: Recipe | None
    models: tuple[str, ...]
    if text in lock.models:
        recipe = image_selection.select(project, lock, text).recipe
        models, before = (text,), str(lock.models[text].pairing.image)
    else:
        named = target.find(project, text, lock.models)
        recipe = named.recipe or _recipe_of_definition(workspace, lock, named.definition)
        repository = recipe.repository if recipe else image.repository_of(project, named.definition or "")
        record = lock.images.get(repository)
        before = f"{repository}:{record.current}" if record and record.current else ""
        models = (recipe.model,) if recipe and recipe.model else ()
        if models and models[0] in lock.models:
            before = str(lock.models[models[0]].pairing.image)
        if named.recipe is None and before:
            models = lock.models_on(_name(before)) or models
    definition = target.definition_of(project, target.find(project, recipe.file if recipe else text))
    chain = image_chain.load(project, definition, versions.platform(workspace.engine))
    every = {name: None for part in chain for name in definition_pins.names(part)}
    if unknown := [name for name in update if name not in every]:
        suggestion = did_you_mean(unknown[0], every, code=True)
        raise UsageError(
            f"{definition} has no source `{unknown[0]}`", hint=suggestion or f"its sources: {', '.join(every)}"
        )
    server = _server(workspace, recipe)
    return Upgrade(
        target=recipe.file if recipe else definition,
        models=models,
        update=dict(update) or every,
        before=before,
        started=timestamp.now(),
        served={key: server.labels.get(key, "") for key in (REQUEST, f"{LABEL}.recipe", LABEL)} if server else {},
    )


def _recipe_of_definition(workspace: Workspace, lock: Lock, definition: str | None) -> Recipe | None:
    """The recipe of the models that a definition's current image serves; None where it serves none. Raises UsageError
    where they have several."""
    repository = image.repository_of(workspace.project, definition or "")
    record = lock.images.get(repository)
    models = lock.models_on(ImageName(repository, record.current)) if record and record.current else ()
    recipes = {}
    for model in models:
        recipe = image_selection.select(workspace.project, lock, model).recipe
        recipes[tuple(sorted(recipe.mods))] = recipe
    if len(recipes) > 1:
        raise UsageError(
            f"{definition} serves {', '.join(models)}, by recipes with other mods", hint="upgrade one of the models"
        )
    return next(iter(recipes.values()), None)


def _finished(workspace: Workspace, subject: str, upgrade: Upgrade) -> UpgradeReport:
    """Takes every step that is left, the journal written before each."""
    try:
        while upgrade.stage != "done":
            upgrade = steps.after(upgrade, _step(workspace, upgrade))
            journal.write(workspace.project, subject, upgrade)
    except KeyboardInterrupt:
        _serve_as_before(workspace, upgrade)
        raise
    journal.remove(workspace.project, subject)
    server = _server(workspace, _recipe(workspace, upgrade))
    return UpgradeReport(
        subject,
        upgrade,
        _changes(workspace, upgrade),
        _measured(workspace, upgrade),
        server.image if server and server.head.service.is_up else "",
    )


def _step(workspace: Workspace, upgrade: Upgrade) -> Event:
    take = {"build": _build, "prove": _prove, "measure": _measure, "promote": _promote, "settle": _settle}
    try:
        return take[upgrade.stage](workspace, upgrade)
    except BuilderError as error:
        return StepFailed(f"{upgrade.stage}: {error.message}")


def _build(workspace: Workspace, upgrade: Upgrade) -> Event:
    mods: tuple[str, ...] = ()
    lock = reading.of(workspace.project)
    record = lock.image(_name(upgrade.before)) if upgrade.before else None
    if record and not record.adopted:
        mods = current_build.original_build(workspace, _name(upgrade.before), record).mods
    request = BuildRequest(
        (upgrade.target,), mods=mods, models=upgrade.models, update=upgrade.update, promote=False, candidate=True
    )
    (result,) = build.run(workspace, request)
    return BuiltCandidate(str(result.image))


def _prove(workspace: Workspace, upgrade: Upgrade) -> Event:
    broken: list[str] = []
    for model in upgrade.models:
        recipe = _recipe_of(workspace, upgrade, model)
        if recipe:
            broken += candidate.proof(workspace, _name(upgrade.candidate), model, recipe.file)
    return Proved(tuple(broken))


def _measure(workspace: Workspace, upgrade: Upgrade) -> Event:
    name = _name(upgrade.candidate)
    for model in upgrade.models:
        recipe = _recipe_of(workspace, upgrade, model)
        if recipe is None:
            continue
        candidate.measure_current(workspace, name, model)
        with candidate.served(workspace, name, _request(upgrade, recipe)) as server:
            candidate.measure(workspace, name, model, server)
    _serve_as_before(workspace, upgrade)
    missing = [str(each) for model in upgrade.models for each in candidate.missing(workspace, name, model)]
    return Measured(tuple(missing))


def _promote(workspace: Workspace, upgrade: Upgrade) -> Event:
    """Moves pins, pairings and ``latest`` in one transaction, or nothing at all."""
    name = _name(upgrade.candidate)
    pins = _pins(workspace, name)
    with images_lock.transaction(workspace) as transaction:
        lock = transaction.lock
        if _is_promoted(lock, upgrade):
            return PointersMoved()
        if reason := _moved_meanwhile(lock, upgrade):
            return StepFailed(reason)
        missing = [str(each) for model in upgrade.models for each in candidate.missing(workspace, name, model)]
        if missing:
            return StepFailed("; ".join(missing))
        moves = _moves(lock, upgrade)
        pointers.require_allowed(workspace.engine, lock, moves, force=False)
        for definition, by_platform in pins.items():
            for platform, of_platform in by_platform.items():
                lock = lock.with_pins(definition, platform, of_platform)
        for move in moves:
            if move.is_model:
                recipe = _recipe_of(workspace, upgrade, move.what)
                earlier = lock.models.get(move.what)
                pairing = pointers.pairing_with(earlier, name) if earlier else Pairing(name)
                lock = lock.with_pairing(move.what, replace(pairing, recipe=recipe.file if recipe else pairing.recipe))
            else:
                lock = pointers.apply(lock, (move,))
        transaction.commit(reserved_slots.added(workspace.project, lock))
    return PointersMoved()


def _settle(workspace: Workspace, upgrade: Upgrade) -> Event:
    """Leaves the server on what counts now, where one was running at the start."""
    if upgrade.result != "promoted":
        _serve_as_before(workspace, upgrade)
        return ServerSettled()
    _stop_candidates(workspace, upgrade)
    recipe = _recipe(workspace, upgrade)
    if not upgrade.served or recipe is None:
        return ServerSettled()
    server = _server(workspace, recipe)
    if server and server.image == upgrade.candidate and server.head.service.is_up:
        return ServerSettled()
    request = _request(upgrade, recipe)
    result = restart.run(workspace, request, detach=False) if server else serving.run(workspace, request, detach=False)
    if back := result.put_back:
        return ServerSettled(f"{back.model} was put back on {back.to}: {back.why}")
    return ServerSettled()


def _serve_as_before(workspace: Workspace, upgrade: Upgrade) -> None:
    """Ends what a candidate left, and starts the model's own server again, as it was, where it ran at the start."""
    _stop_candidates(workspace, upgrade)
    recipe = _recipe(workspace, upgrade)
    if not upgrade.served or recipe is None:
        return
    server = _server(workspace, recipe)
    if server and server.head.service.is_up:
        return
    if server:
        stop.end(server, STOPPING_SECONDS)
    workspace.report(Message(f"starting {upgrade.served[LABEL]} again, from {upgrade.before}"))
    serving.run(workspace, _request(upgrade, recipe), detach=False)


def _stop_candidates(workspace: Workspace, upgrade: Upgrade) -> None:
    if recipe := _recipe(workspace, upgrade):
        candidate.stop_left_over(workspace, recipe)


def _server(workspace: Workspace, recipe: Recipe | None) -> RunningServer | None:
    """The server of the recipe, on this engine or on nodes."""
    return lookup.pick(workspace.project, lookup.find_all(workspace), recipe.file) if recipe else None


def _request(upgrade: Upgrade, recipe: Recipe) -> ServeRequest:
    """The request that the model's server was started with, or a plain one."""
    return restart.as_before(upgrade.served, ServeRequest(recipe.file, {}))


def _recipe(workspace: Workspace, upgrade: Upgrade) -> Recipe | None:
    return target.find(workspace.project, upgrade.target).recipe


def _recipe_of(workspace: Workspace, upgrade: Upgrade, model: str) -> Recipe | None:
    """The recipe by which a model is served: that of the target, or of the model's own pairing."""
    recipe = _recipe(workspace, upgrade)
    if recipe and recipe.model == model:
        return recipe
    lock = reading.of(workspace.project)
    return image_selection.select(workspace.project, lock, model).recipe if model in lock.models else None


def _pins(workspace: Workspace, name: ImageName) -> Mapping[str, Mapping[str, Pins]]:
    """The pins that a number was built with, from its build directory."""
    path = workspace.project.build_directory(name.repository, name.number) / images_lock.RECORD
    return reading.parse_bytes(regular_file.read(path, _LARGEST_RECORD), images_lock.RECORD).pins


def _moves(lock: Lock, upgrade: Upgrade) -> tuple[PointerMove, ...]:
    """The moves to the candidate: of its models, and of ``latest`` where that is on the image before, or nowhere."""
    name = _name(upgrade.candidate)
    origin = _name(upgrade.before) if upgrade.before else None
    moves = [PointerMove(model, True, origin, name) for model in upgrade.models]
    current = lock.images[name.repository].current
    if current is None or (origin and origin == ImageName(name.repository, current)):
        moves.append(PointerMove(name.repository, False, origin, name))
    return tuple(moves)


def _is_promoted(lock: Lock, upgrade: Upgrade) -> bool:
    name = _name(upgrade.candidate)
    if not upgrade.models:
        return lock.images[name.repository].current == name.number
    return all(model in lock.models and lock.models[model].pairing.image == name for model in upgrade.models)


def _moved_meanwhile(lock: Lock, upgrade: Upgrade) -> str:
    """The reason why an upgrade no longer fits: the user has moved what it began with."""
    for model in upgrade.models:
        paired = lock.models.get(model)
        if paired and upgrade.before and str(paired.pairing.image) != upgrade.before:
            return f"{model} was moved to {paired.pairing.image} meanwhile"
    return ""


def _changes(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    if not upgrade.candidate or not upgrade.before:
        return ()
    move = PointerMove(upgrade.target, True, _name(upgrade.before), _name(upgrade.candidate))
    return pointers.differences(workspace.project, reading.of(workspace.project), (move,))


def _measured(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    """The last run of each kind of the candidate, with the figures of the image before beside its own."""
    if not upgrade.candidate:
        return ()
    before = _latest(workspace, upgrade.before)
    lines = []
    for (kind, name), each in _latest(workspace, upgrade.candidate).items():
        words = [f"{kind} {name}: {each.verdict}"]
        other = before.get((kind, name))
        for figure in each.figures:
            same = [old for old in (other.figures if other else ()) if (old.name, old.at) == (figure.name, figure.at)]
            depth = f" at {figure.at['depth']}" if "depth" in figure.at else ""
            was = f"{same[0].mean:.4g} → " if same else ""
            words.append(f"{figure.name}{depth} {was}{figure.mean:.4g} {figure.unit}")
        lines.append(", ".join(words))
    return tuple(lines)


def _latest(workspace: Workspace, image_text: str) -> dict[tuple[str, str], Evidence]:
    if not image_text:
        return {}
    runs = store.look(workspace.project, _name(image_text)).runs
    return {(run.kind, run.name): run for run in runs if not run.foreign}


def _subject(upgrade: Upgrade) -> str:
    return upgrade.models[0] if upgrade.models else upgrade.target


def _name(text: str) -> ImageName:
    repository, _, number = text.rpartition(":")
    return ImageName(repository, int(number))

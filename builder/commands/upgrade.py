"""The upgrade command makes new pins, builds a candidate, and decides by its evidence.

The command and its steps come last: before them the evidence, the target, the pointers and the report. A killed upgrade
continues from its journal. Pins and pointers move in one transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.base import words
from builder.base.errors import BuilderError, ConflictError, MeasuringError, NothingToDoError, UsageError
from builder.base.events import Message
from builder.base.words import did_you_mean
from builder.building import work_folder
from builder.building.request import BuildRequest
from builder.commands import build, comparing, diff, measuring, servers, why
from builder.definitions import build_target, configuration, image
from builder.engine import versions
from builder.evidence import requirements, standing, store
from builder.lab import changes, upgrade_journal
from builder.lab.measure import probes, served_model
from builder.lab.upgrade_journal import Upgrade
from builder.lock import lock_file
from builder.lock.model import ImageName
from builder.numbers import images_lock, pointers
from builder.numbers.pointers import PointerMove
from builder.pins import pinning
from builder.serving import image_words, selection
from builder.serving.preparation import ServeRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.base.project import Project
    from builder.building.outlook import BuildOutlook
    from builder.building.resolve import PlannedImage
    from builder.definitions.configuration import BenchProfile, RequiredFigure
    from builder.definitions.recipe import Recipe
    from builder.evidence.matrix import RunPair
    from builder.evidence.requirements import MissingEvidence
    from builder.lab.measure.served_model import MeasuredServer
    from builder.lab.upgrade_journal import Result
    from builder.lock.model import Lock
    from builder.numbers.workspace import Workspace


# The evidence of a candidate: what is measured of its server where that is required.


def _lacking(workspace: Workspace, name: ImageName, model: str) -> tuple[MissingEvidence, ...]:
    """Whatever ``name`` lacks of the evidence that ``model`` requires."""
    lock = lock_file.read_project_lock(workspace.project)
    return requirements.missing(workspace.project, lock, name, model, environ=workspace.environment)


def _all_lacking(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    return tuple(str(each) for model in upgrade.models for each in _lacking(workspace, upgrade.candidate_image, model))


def measure_current(workspace: Workspace, model: str, figures: Sequence[RequiredFigure]) -> str:
    """Measures ``figures`` of the image that serves ``model`` now. Returns why that failed, or nothing. A failure is
    not kept: an upgrade judges its candidate, and not the current image."""
    for profile in _profiles(workspace, figures):
        with measuring.chosen_server(workspace, model) as server:
            outcome = measuring.measure_server(workspace, server, profile)
            if outcome.verdict == "fail":
                reason = requirements.first_finding(outcome.findings, outcome.verdict)
                return f"{server.running.image}, the current image, failed the bench {profile.name} as well{reason}"
            served_model.keep_run(workspace, server, outcome)
    return ""


def _probe(workspace: Workspace, name: ImageName, model: str, server: MeasuredServer) -> bool:
    """Runs the probes that ``name`` lacks against its server and keeps the results. False if one did not pass."""
    for each in [each.name for each in _lacking(workspace, name, model) if each.kind == "probe"]:
        probes.require(workspace.project, each)
        outcome = probes.run_probe(workspace.project, server.model, each, workspace.environment, workspace.report)
        served_model.keep_run(workspace, server, outcome)
        if outcome.verdict != "pass":
            return False
    return True


def measure(
    workspace: Workspace, name: ImageName, model: str, server: MeasuredServer, also: Sequence[RequiredFigure]
) -> bool:
    """Measures the figures that ``name`` lacks, and those of ``also``, and keeps the results. False if a bench
    failed."""
    lacking = {each.name for each in _lacking(workspace, name, model) if each.kind == "bench"}
    lock = lock_file.read_project_lock(workspace.project)
    recipe = requirements.recipe_of(workspace.project, lock, name, model)
    figures = requirements.required(workspace.project, model, recipe).figures
    for profile in _profiles(workspace, [each for each in figures if each in also or each.figure in lacking]):
        outcome = measuring.measure_server(workspace, server, profile)
        served_model.keep_run(workspace, server, outcome)
        if outcome.verdict == "fail":
            return False
    return True


def _profiles(workspace: Workspace, figures: Sequence[RequiredFigure]) -> tuple[BenchProfile, ...]:
    """The fewest bench profiles that measure all of ``figures``, for each the shortest."""

    def length(profile: BenchProfile) -> tuple[int, int]:
        runs = len(profile.pp) * len(profile.tg) * len(profile.concurrency) * profile.runs
        return runs * len(profile.depth), runs * sum(profile.depth)

    chosen: dict[str, BenchProfile] = {}
    every = sorted(configuration.load_configuration(workspace.project).bench, key=length)
    for figure in figures:
        suitable = [
            profile
            for profile in every
            if (figure.depth is None or figure.depth in profile.depth)
            and (figure.concurrency or 1) in profile.concurrency
            and profile.runs >= requirements.LEAST_SAMPLES
        ]
        if not suitable:
            raise MeasuringError(
                f"no profile of `builder bench` measures {figure.figure}",
                hint="write one with that depth and concurrency under `bench:` into builder.yaml",
            )
        profile = next((profile for profile in suitable if profile.name in chosen), suitable[0])
        chosen[profile.name] = profile
    return tuple(chosen.values())


# The target of an upgrade: the recipe or definition that is built, its models, and the image that they have.


def _begun(workspace: Workspace, text: str, update: Mapping[str, str | None], *, older: bool = False) -> Upgrade:
    """The upgrade that ``text`` means; with ``older``, packages may go back to older versions."""
    project = workspace.project
    lock = lock_file.read_project_lock(project)
    recipe, models, before = _subject(workspace, lock, text)
    definition = build_target.definition_of(project, build_target.find_target(project, recipe.file if recipe else text))
    chain = image.load_chain(project, definition, versions.platform(workspace.engine))
    every = {name: None for part in chain for name in pinning.pin_names(part)}
    if unknown := [name for name in update if name not in every]:
        suggestion = did_you_mean(unknown[0], every, code=True)
        raise UsageError(
            f"{definition} has no source `{unknown[0]}`", hint=suggestion or f"its sources: {', '.join(every)}"
        )
    return Upgrade(
        target=recipe.file if recipe else definition,
        models=models,
        update=dict(update) or every,
        before=str(before) if before else "",
        started=words.now(),
        served=measuring.server_of(workspace, recipe) is not None,
        older=older,
    )


def _subject(workspace: Workspace, lock: Lock, text: str) -> tuple[Recipe | None, tuple[str, ...], ImageName | None]:
    """The recipe that ``text`` means, if any, with the models to upgrade and the image that they have now. Raises
    UsageError for a definition whose image serves models by recipes with different mods."""
    project = workspace.project
    if text in lock.models:
        return selection.select_image(project, lock, text).recipe, (text,), lock.models[text].pairing.image
    named = build_target.find_target(project, text, lock.models)
    recipe, definition = named.recipe, named.definition or ""
    repository = recipe.repository if recipe else image.repository_of(project, definition)
    record = lock.images.get(repository)
    before = ImageName(repository, record.current) if record and record.current else None
    if recipe:
        paired = lock.models.get(recipe.model or "")
        return recipe, (recipe.model,) if recipe.model else (), paired.pairing.image if paired else before
    models = lock.models_on(before) if before else ()
    recipes = [selection.select_image(project, lock, model).recipe for model in models]
    if len({tuple(sorted(each.mods)) for each in recipes}) > 1:
        raise UsageError(
            f"{definition} serves {', '.join(models)}, by recipes with different mods", hint="upgrade one of the models"
        )
    return recipes[-1] if recipes else None, models, before


def _target_recipe(workspace: Workspace, upgrade: Upgrade) -> Recipe | None:
    return build_target.find_target(workspace.project, upgrade.target).recipe


def _recipe_of(workspace: Workspace, upgrade: Upgrade, model: str) -> Recipe | None:
    """The recipe by which a model is served: that of the target, or of the model's own pairing."""
    recipe = _target_recipe(workspace, upgrade)
    if recipe and recipe.model == model:
        return recipe
    lock = lock_file.read_project_lock(workspace.project)
    return selection.select_image(workspace.project, lock, model).recipe if model in lock.models else None


# The end of an upgrade: pins, pairings and ``latest`` move to the candidate, all in one transaction.


def _promote(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    """Moves pins, pairings and ``latest`` in one transaction, or nothing at all: returns the reasons then."""
    name = upgrade.candidate_image
    # The candidate was built with these pins.
    pins = lock_file.read_record(workspace.project.build_directory(name.repository, name.number)).pins
    with images_lock.transaction(workspace) as transaction:
        lock = transaction.lock
        # The user may have moved the models that it began with.
        images = {model: str(lock.models[model].pairing.image) for model in upgrade.models if model in lock.models}
        moved = [model for model in images if upgrade.before and images[model] != upgrade.before]
        reasons = tuple(f"{model} was moved to {images[model]} meanwhile" for model in moved)
        if reasons := reasons or _all_lacking(workspace, upgrade):
            return reasons
        moves = _moves(lock, upgrade)
        pointers.require_allowed(workspace.engine, lock, moves, force=False)
        for definition, by_platform in pins.items():
            for platform, of_platform in by_platform.items():
                lock = lock.with_pins(definition, platform, of_platform)
        lock = pointers.apply_moves(lock, moves)
        for model in upgrade.models:
            if recipe := _recipe_of(workspace, upgrade, model):
                record_of_model = lock.models[model]
                pairing = replace(record_of_model.pairing, recipe=recipe.file)
                lock = lock.with_model(model, replace(record_of_model, pairing=pairing))
        transaction.commit(lock)
    return ()


def _are_moved(lock: Lock, upgrade: Upgrade) -> bool:
    name = upgrade.candidate_image
    if not upgrade.models:
        record = lock.images.get(name.repository)
        return record is not None and record.current == name.number
    return all(model in lock.models and lock.models[model].pairing.image == name for model in upgrade.models)


def _moves(lock: Lock, upgrade: Upgrade) -> tuple[PointerMove, ...]:
    """The moves to the candidate: of its models, and of ``latest`` where that is on the image before, or nowhere."""
    name, origin = upgrade.candidate_image, upgrade.image_before
    moves = [PointerMove(model, True, origin, name) for model in upgrade.models]
    current = lock.images[name.repository].current
    if current is None or origin == ImageName(name.repository, current):
        moves.append(PointerMove(name.repository, False, origin, name))
    return tuple(moves)


@dataclass(frozen=True)
class UpgradeReport:
    """A finished upgrade: the ``changes`` between the two images, their last ``runs`` side by side, and the image that
    serves, empty if none does. ``machine`` lists what changed in the machine since the image before worked: it may be
    the reason as well."""

    upgrade: Upgrade
    changes: tuple[str, ...]
    runs: tuple[RunPair, ...]
    served: str
    machine: tuple[str, ...] = ()


def _reported(workspace: Workspace, upgrade: Upgrade, machine: tuple[str, ...]) -> UpgradeReport:
    server = measuring.server_of(workspace, _target_recipe(workspace, upgrade))
    served = server.image if server and server.head.service.is_up else ""
    before = upgrade.image_before
    if not before or not upgrade.candidate:
        return UpgradeReport(upgrade, (), (), served, machine)
    project, candidate = workspace.project, upgrade.candidate_image
    lock = lock_file.read_project_lock(project)
    recipes = [recipe for _, recipe in _recipes(workspace, upgrade)]
    lost = image_words.lost(workspace, upgrade.before, upgrade.candidate, recipes)
    changed = pointers.differences(project, lock, [PointerMove(upgrade.target, True, before, candidate)])
    return UpgradeReport(upgrade, (*lost, *changed), diff.last_runs(project, lock, before, candidate), served, machine)


# The upgrade command: new pins, a candidate, its evidence, and the decision.


def upgrade_image(
    workspace: Workspace,
    text: str,
    update: Mapping[str, str | None],
    *,
    older: bool = False,
    machine_differs: bool = False,
) -> UpgradeReport:
    """Upgrades the model, recipe or definition called ``text``: builds a candidate with the sources of ``update`` (all
    if empty) resolved again, proves and measures it, and moves pins and pointers if nothing is missing. ``older``
    allows older packages or sources, ``machine_differs`` a machine that changed since the present image worked.

    An interrupted upgrade continues. Any error on the way rejects the candidate and is in the report; the model is then
    served as before. Raises ConflictError if the interrupted upgrade was for other sources, or the machine changed.
    """
    project = workspace.project
    fresh = _begun(workspace, text, update, older=older)
    with upgrade_journal.journal_of(project, fresh.subject).hold():
        upgrade = _interrupted(project, fresh)
        if upgrade is None:
            if fresh.image_before and not machine_differs:
                why.require_same_machine(fresh.image_before, _machine_since(workspace, fresh), fresh.subject)
            upgrade_journal.journal_of(project, fresh.subject).write(fresh)
            return _finished(workspace, fresh)
        if update and dict(update) != dict(upgrade.update):
            raise ConflictError(
                f"an upgrade of {fresh.subject} to other sources was interrupted",
                hint=f"`builder upgrade {text}` continues it, `builder upgrade {text} --abort` gives it up",
            )
        workspace.report(Message(f"continuing the interrupted upgrade: {upgrade.progress}"))
        if not upgrade.result:
            serve_as_before(workspace, upgrade)
        return _finished(workspace, upgrade)


def _machine_since(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    """The differences in the machine since the image before worked."""
    before = upgrade.image_before
    return why.machine_since(workspace, before, upgrade.models) if before else ()


def abort_upgrade(workspace: Workspace, text: str) -> UpgradeReport:
    """Gives up an interrupted upgrade: the model is served as before, and the candidate stays, with its evidence."""
    project = workspace.project
    fresh = _begun(workspace, text, {})
    with upgrade_journal.journal_of(project, fresh.subject).hold():
        upgrade = _interrupted(project, fresh)
        if upgrade is None:
            raise NothingToDoError(f"no upgrade of {fresh.subject} was interrupted")
        if not upgrade.result:
            is_moved = upgrade.candidate and _are_moved(lock_file.read_project_lock(project), upgrade)
            upgrade = replace(upgrade, result="promoted") if is_moved else _ended(upgrade, "aborted", "given up")
            upgrade_journal.journal_of(project, fresh.subject).write(upgrade)
        return _finished(workspace, upgrade)


def _interrupted(project: Project, fresh: Upgrade) -> Upgrade | None:
    """The upgrade in the journal. Anybody may have written that: what is built and served comes from ``fresh``."""
    upgrade = upgrade_journal.journal_of(project, fresh.subject).read()
    return upgrade and replace(upgrade, target=fresh.target, models=fresh.models)


def _ended(upgrade: Upgrade, result: Result, *why: str) -> Upgrade:
    return replace(upgrade, result=result, why=why)


def _finished(workspace: Workspace, upgrade: Upgrade) -> UpgradeReport:
    """Takes every step that is left. If ^C, SIGTERM or a closed terminal ends this early, the model is served as
    before."""
    # Before the servers start: a candidate that answers records the machine again.
    differences = _machine_since(workspace, upgrade)
    journal = upgrade_journal.journal_of(workspace.project, upgrade.subject)
    try:
        if not upgrade.result:
            upgrade = _decided(workspace, upgrade)
            journal.write(upgrade)
        try:
            notes = _settle(workspace, upgrade)
        except BuilderError as error:
            notes = (f"serving: {error.message}",)
    except BaseException:
        serve_as_before(workspace, upgrade)
        raise
    journal.remove()
    return _reported(workspace, replace(upgrade, why=(*upgrade.why, *notes)), differences)


def _decided(workspace: Workspace, upgrade: Upgrade) -> Upgrade:
    """Builds the candidate, tests it, and moves pins and pointers if nothing is missing; returns the upgrade with its
    result. Any error rejects the candidate."""
    step = "build"
    try:
        if not upgrade.candidate:
            (built,) = build.build_targets(workspace, _request(workspace, upgrade))
            upgrade = replace(upgrade, candidate=str(built.image))
            upgrade_journal.journal_of(workspace.project, upgrade.subject).write(upgrade)
        if upgrade.candidate == upgrade.before:
            return _ended(upgrade, "unchanged")
        if _are_moved(lock_file.read_project_lock(workspace.project), upgrade):  # it was killed right after the move
            return _ended(upgrade, "promoted")
        for step, act in (("prove", _prove), ("measure", _measure), ("promote", _promote)):  # noqa: B007
            if reasons := act(workspace, upgrade):
                return _ended(upgrade, "rejected", *reasons)
        return _ended(upgrade, "promoted")
    except BuilderError as error:
        hint = f"; {error.hint}" if step == "build" and error.hint else ""
        return _ended(upgrade, "rejected", f"{step}: {error.message}{hint}")


def preview_upgrade(
    workspace: Workspace, text: str, update: Mapping[str, str | None]
) -> tuple[tuple[PlannedImage, BuildOutlook], ...]:
    """The plan of the candidate that `upgrade_image` would build; nothing is built, moved or recorded."""
    return build.preview_build(workspace, _request(workspace, _begun(workspace, text, update)))


def _request(workspace: Workspace, upgrade: Upgrade) -> BuildRequest:
    before = upgrade.image_before
    record = lock_file.read_project_lock(workspace.project).image(before) if before else None
    return BuildRequest(
        (upgrade.target,),
        mods=changes.original_build(workspace, before, record).mods if before and record and not record.adopted else (),
        models=upgrade.models,
        update=upgrade.update,
        promote=False,
        candidate=True,
        older=upgrade.older,
    )


def _recipes(workspace: Workspace, upgrade: Upgrade) -> Iterator[tuple[str, Recipe]]:
    """The models of the upgrade, each with the recipe that serves it."""
    for model in upgrade.models:
        if recipe := _recipe_of(workspace, upgrade, model):
            yield model, recipe


def _prove(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    """Proves the candidate for each model, unless that is done; returns what is broken, so that it is not measured."""
    name = upgrade.candidate_image
    broken = []
    for model, recipe in _recipes(workspace, upgrade):
        runs = [each for each in store.of_image(workspace.project, name) if each.subject.model == model]
        latest = standing.latest([each for each in runs if not each.foreign], "prove")
        if latest is None or any(each.kind == "prove" for each in _lacking(workspace, name, model)):
            (proved,) = measuring.prove_image(workspace, str(name), (recipe.file,))
            latest = proved.evidence
        if latest.verdict == "fail":
            texts = [(each, next(iter(each.text.splitlines()), "")) for each in latest.findings[:3]]
            broken += [f"{each.check} at {each.at}: {text}" for each, text in texts]
    return tuple(broken)


def _measure(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    """Measures all that is required; returns what did not pass."""
    failed = [
        _measure_for(workspace, upgrade, model, measuring.request_as_before(workspace, recipe))
        for model, recipe in _recipes(workspace, upgrade)
    ]
    for model, _ in _recipes(workspace, upgrade):
        if not any(failed):
            _compare(workspace, upgrade, model)
    serve_as_before(workspace, upgrade)
    reasons = _all_lacking(workspace, upgrade)
    return (*reasons, *filter(None, failed)) if reasons else ()


def _compare(workspace: Workspace, upgrade: Upgrade, model: str) -> None:
    """Compares the candidate's answers with the current image's where that, and nothing else, is still required."""
    lacking = _lacking(workspace, upgrade.candidate_image, model)
    if upgrade.image_before and lacking and {each.kind for each in lacking} == {"same"}:
        comparing.require_same(workspace, model, upgrade.image_before, upgrade.candidate_image)


def _measure_for(workspace: Workspace, upgrade: Upgrade, model: str, request: ServeRequest) -> str:
    """Takes the probes and figures that a model requires of the candidate. What is to be compared is measured in turn
    with the current image, in as many rounds as it takes to tell the two apart; after a failure there is no further
    round. Returns why the current image failed, or nothing."""
    name = upgrade.candidate_image
    failed = ""
    for number in range(requirements.MOST_ROUNDS):
        lock = lock_file.read_project_lock(workspace.project)
        in_turn = requirements.figures_in_turn(workspace.project, lock, name, model, workspace.environment)
        if number and not in_turn:
            break
        if in_turn:
            workspace.report(Message(f"round {number + 1}: {upgrade.before}, to compare with, then {name}"))
            serve_as_before(workspace, upgrade)
            failed = measure_current(workspace, model, in_turn)
        with measuring.candidate_server(workspace, request, name) as server:
            measured = served_model.find_measured_server(server)
            if not _probe(workspace, name, model, measured):
                break
            if not measure(workspace, name, model, measured, in_turn) or failed:
                break
    return failed


def _settle(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    """Leaves the server on what counts now, where one was running at the start; returns notes on that."""
    if upgrade.result != "promoted":
        serve_as_before(workspace, upgrade)
        return ()
    recipe = _without_candidates(workspace, upgrade)
    server = measuring.server_of(workspace, recipe)
    if recipe is None or (server and server.image == upgrade.candidate and server.head.service.is_up):
        return ()
    back = servers.restart_server(workspace, ServeRequest(recipe.file, {}), detach=False).put_back
    return (f"{back.model} was put back on {back.to}: {back.why}",) if back else ()


def serve_as_before(workspace: Workspace, upgrade: Upgrade) -> None:
    """Ends what a candidate left, and starts the model's own server again, as it was, where it ran at the start."""
    work_folder.remove_stale(workspace)
    if recipe := _without_candidates(workspace, upgrade):
        measuring.serve_again(workspace, recipe)


def _without_candidates(workspace: Workspace, upgrade: Upgrade) -> Recipe | None:
    """Ends what is left of candidates; returns the recipe of the server that ran at the start, None where none did."""
    recipe = _target_recipe(workspace, upgrade)
    if recipe:
        servers.stop_candidates(workspace, recipe.file, "the candidate of an upgrade")
    return recipe if upgrade.served else None

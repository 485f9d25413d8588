"""The upgrade command makes new pins, builds a candidate, and decides by its evidence.

The evidence comes first, then the target, the pointers, the report, the server, and the command as a whole.
A killed upgrade continues from its journal. Pins and pointers move in one transaction.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.base import words
from builder.base.errors import BuilderError, ConflictError, MeasuringError, NothingToDoError, UsageError
from builder.base.events import Message
from builder.base.words import did_you_mean
from builder.building import work_folder
from builder.building.request import BuildRequest
from builder.commands import build, measuring, proving, servers
from builder.definitions import build_target, configuration, image
from builder.definitions.container import STOPPING_SECONDS
from builder.engine import versions
from builder.evidence import requirements, standing, store
from builder.lab.compare import changes
from builder.lab.measure import probes, served_model
from builder.lab.upgrade import upgrade_journal
from builder.lab.upgrade.upgrade_journal import Upgrade
from builder.lock import lock_file
from builder.lock.model import ImageName, Pairing
from builder.numbers import images_lock, pointers
from builder.numbers.pointers import PointerMove
from builder.pins import pinning
from builder.serving import beside, selection
from builder.serving.preparation import ServeRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.base.project import Project
    from builder.building.outlook import BuildOutlook
    from builder.building.resolve import PlannedImage
    from builder.definitions.configuration import BenchProfile, RequiredFigure
    from builder.definitions.recipe import Recipe
    from builder.evidence.records import Evidence
    from builder.evidence.requirements import MissingEvidence
    from builder.lab.measure.served_model import MeasuredServer
    from builder.lock.model import Lock, Pins
    from builder.numbers.workspace import Workspace


# The evidence of a candidate, for `upgrade`: its proof, and what is measured of its server where that is required.


def proof(workspace: Workspace, name: ImageName, model: str, recipe: str) -> tuple[str, ...]:
    """Proves ``name`` for a model, unless that is done; returns what is broken."""
    latest = standing.latest(
        [each for each in store.of_image(workspace.project, name) if each.subject.model == model and not each.foreign],
        "prove",
    )
    lock = lock_file.read_project_lock(workspace.project)
    lacking = requirements.missing(workspace.project, lock, name, model, environ=workspace.environment)
    if latest is None or any(each.kind == "prove" for each in lacking):
        (proved,) = proving.prove_image(workspace, str(name), (recipe,))
        latest = proved.evidence
    if latest.verdict != "fail":
        return ()
    return tuple(f"{finding.check} at {finding.at}: {_first_line(finding.text)}" for finding in latest.findings[:3])


def figures_in_turn(workspace: Workspace, name: ImageName, model: str) -> tuple[RequiredFigure, ...]:
    """The figures of which another round of ``name`` and of the current image tells more."""
    lock = lock_file.read_project_lock(workspace.project)
    return requirements.figures_in_turn(workspace.project, lock, name, model, workspace.environment)


def measure_current(workspace: Workspace, model: str, figures: Sequence[RequiredFigure]) -> str:
    """Measures ``figures`` of the image that serves ``model`` now: its server is used, or one is started for that.
    Returns why that failed, and nothing where it did not. A failure is not kept: an upgrade judges its candidate, and
    not the current image."""
    for profile in _profiles(workspace, figures):
        with measuring.running_or_started(workspace, model) as server:
            outcome = measuring.measure_server(workspace, server, profile)
            if outcome.verdict == "fail":
                reason = requirements.first_finding(outcome.findings, outcome.verdict)
                return f"{server.running.image}, the current image, failed the bench {profile.name} as well{reason}"
            served_model.keep_run(workspace, server, outcome)
    return ""


def probe(workspace: Workspace, name: ImageName, model: str, server: MeasuredServer) -> bool:
    """Runs the probes that ``model`` requires and ``name`` lacks against its server, keeps the results, and tells
    whether all of them passed."""
    lacking = [each.name for each in missing_requirements(workspace, name, model) if each.kind == "probe"]
    for each in lacking:
        probes.require(workspace.project, each)
        outcome = probes.run_probe(workspace.project, server.model, each, workspace.environment, workspace.report)
        served_model.keep_run(workspace, server, outcome)
        if outcome.verdict != "pass":
            return False
    return True


def measure(
    workspace: Workspace, name: ImageName, model: str, server: MeasuredServer, also: Sequence[RequiredFigure]
) -> bool:
    """Measures on the server of ``name`` the figures that ``model`` requires and it lacks, and those of ``also``, keeps
    the results, and tells whether the server held out."""
    lacking = {each.name for each in missing_requirements(workspace, name, model) if each.kind == "bench"}
    wanted = [each for each in _figures(workspace, name, model) if each in also or each.figure in lacking]
    for profile in _profiles(workspace, wanted):
        outcome = measuring.measure_server(workspace, server, profile)
        served_model.keep_run(workspace, server, outcome)
        if outcome.verdict == "fail":
            return False
    return True


@contextmanager
def served(workspace: Workspace, name: ImageName, request: ServeRequest) -> Iterator[MeasuredServer]:
    """The candidate's server for as long as it is measured: beside the model's own where the memory suffices, else in
    its place, under a name and port of its own in either case. The model's own server is not started again here; the
    engine does it if the machine starts anew."""
    prepared = beside.prepare(workspace, request, name)
    measuring.make_room(workspace, request.text, prepared)
    limit = measuring.start_limit(workspace, prepared)
    result = servers.serve_server(workspace, request, prepared, detach=False, limit=limit)
    try:
        yield served_model.find_measured_server(result.server)
    finally:
        servers.end_server(result.server, STOPPING_SECONDS)


def missing_requirements(workspace: Workspace, name: ImageName, model: str) -> tuple[MissingEvidence, ...]:
    """Whatever ``name`` lacks of the evidence that ``model`` requires."""
    lock = lock_file.read_project_lock(workspace.project)
    return requirements.missing(workspace.project, lock, name, model, environ=workspace.environment)


def requirement_reasons(workspace: Workspace, name: ImageName, models: Sequence[str]) -> tuple[str, ...]:
    """The reasons that keep ``name`` from being paired with ``models``: the evidence that it lacks."""
    return tuple(str(each) for model in models for each in missing_requirements(workspace, name, model))


def _figures(workspace: Workspace, name: ImageName, model: str) -> tuple[RequiredFigure, ...]:
    lock = lock_file.read_project_lock(workspace.project)
    recipe = requirements.recipe_of(workspace.project, lock, name, model)
    return requirements.required(workspace.project, model, recipe).figures


def _profiles(workspace: Workspace, figures: Sequence[RequiredFigure]) -> tuple[BenchProfile, ...]:
    """The fewest bench profiles that measure all of ``figures``, the shortest that does for each. Raises MeasuringError
    where none measures one of them."""
    chosen: dict[str, BenchProfile] = {}
    every = sorted(configuration.load_configuration(workspace.project).bench, key=_length)
    for figure in figures:
        suitable = [profile for profile in every if _measures(profile, figure)]
        if not suitable:
            raise MeasuringError(
                f"no profile of `builder bench` measures {figure.figure}",
                hint="write one with that depth and concurrency under `bench:` into builder.yaml",
            )
        profile = next((profile for profile in suitable if profile.name in chosen), suitable[0])
        chosen[profile.name] = profile
    return tuple(chosen.values())


def _length(profile: BenchProfile) -> tuple[int, int]:
    runs = len(profile.pp) * len(profile.tg) * len(profile.concurrency) * profile.runs
    return runs * len(profile.depth), runs * sum(profile.depth)


def _measures(profile: BenchProfile, figure: RequiredFigure) -> bool:
    depths = figure.depth is None or figure.depth in profile.depth
    return depths and (figure.concurrency or 1) in profile.concurrency and profile.runs >= requirements.LEAST_SAMPLES


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


# The target of an upgrade: the recipe or definition that is built, its models, and the image that they have.


def begun(workspace: Workspace, text: str, update: Mapping[str, str | None], *, older: bool = False) -> Upgrade:
    """The upgrade that ``text`` means; with ``older``, packages may go back to older versions. Raises UsageError where
    it names nothing, or nothing tells how to build it."""
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
    """The recipe that ``text`` means, if any, with the models to upgrade and the image that they have now."""
    if text in lock.models:
        recipe = selection.select_image(workspace.project, lock, text).recipe
        return recipe, (text,), lock.models[text].pairing.image
    named = build_target.find_target(workspace.project, text, lock.models)
    by_name = named.recipe or _recipe_of_definition(workspace, lock, named.definition)
    repository = by_name.repository if by_name else image.repository_of(workspace.project, named.definition or "")
    record = lock.images.get(repository)
    before = ImageName(repository, record.current) if record and record.current else None
    models: tuple[str, ...] = (by_name.model,) if by_name and by_name.model else ()
    if models and models[0] in lock.models:
        before = lock.models[models[0]].pairing.image
    if named.recipe is None and before:
        models = lock.models_on(before) or models
    return by_name, models, before


def recipe_of_target(workspace: Workspace, upgrade: Upgrade) -> Recipe | None:
    return build_target.find_target(workspace.project, upgrade.target).recipe


def recipe_of(workspace: Workspace, upgrade: Upgrade, model: str) -> Recipe | None:
    """The recipe by which a model is served: that of the target, or of the model's own pairing."""
    recipe = recipe_of_target(workspace, upgrade)
    if recipe and recipe.model == model:
        return recipe
    lock = lock_file.read_project_lock(workspace.project)
    return selection.select_image(workspace.project, lock, model).recipe if model in lock.models else None


def _recipe_of_definition(workspace: Workspace, lock: Lock, definition: str | None) -> Recipe | None:
    """The recipe of the models that a definition's current image serves; None where it serves none. Raises UsageError
    where they have several."""
    repository = image.repository_of(workspace.project, definition or "")
    record = lock.images.get(repository)
    models = lock.models_on(ImageName(repository, record.current)) if record and record.current else ()
    recipes = {}
    for model in models:
        recipe = selection.select_image(workspace.project, lock, model).recipe
        recipes[tuple(sorted(recipe.mods))] = recipe
    if len(recipes) > 1:
        raise UsageError(
            f"{definition} serves {', '.join(models)}, by recipes with different mods", hint="upgrade one of the models"
        )
    return next(iter(recipes.values()), None)


# The end of an upgrade: pins, pairings and ``latest`` move to the candidate, all in one transaction.


def move(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    """Moves pins, pairings and ``latest`` in one transaction, or nothing at all: returns the reasons then."""
    name = upgrade.candidate_image
    pins = _pins(workspace, name)
    with images_lock.transaction(workspace) as transaction:
        lock = transaction.lock
        if are_moved(lock, upgrade):
            return ()
        reasons = _moved_meanwhile(lock, upgrade) or requirement_reasons(workspace, name, upgrade.models)
        if reasons:
            return reasons
        moves = _moves(lock, upgrade)
        pointers.require_allowed(workspace.engine, lock, moves, force=False)
        for definition, by_platform in pins.items():
            for platform, of_platform in by_platform.items():
                lock = lock.with_pins(definition, platform, of_platform)
        for move in moves:
            if move.is_model:
                recipe = recipe_of(workspace, upgrade, move.what)
                earlier = lock.models.get(move.what)
                pairing = pointers.pairing_with(earlier, name) if earlier else Pairing(name)
                lock = lock.with_pairing(move.what, replace(pairing, recipe=recipe.file if recipe else pairing.recipe))
            else:
                lock = pointers.apply_moves(lock, (move,))
        transaction.commit(lock)
    return ()


def are_moved(lock: Lock, upgrade: Upgrade) -> bool:
    name = upgrade.candidate_image
    if not upgrade.models:
        return lock.images[name.repository].current == name.number
    return all(model in lock.models and lock.models[model].pairing.image == name for model in upgrade.models)


def _pins(workspace: Workspace, name: ImageName) -> Mapping[str, Mapping[str, Pins]]:
    """The pins that a number was built with, from its build directory."""
    return lock_file.read_record(workspace.project.build_directory(name.repository, name.number)).pins


def _moves(lock: Lock, upgrade: Upgrade) -> tuple[PointerMove, ...]:
    """The moves to the candidate: of its models, and of ``latest`` where that is on the image before, or nowhere."""
    name = upgrade.candidate_image
    origin = upgrade.image_before
    moves = [PointerMove(model, True, origin, name) for model in upgrade.models]
    current = lock.images[name.repository].current
    if current is None or (origin and origin == ImageName(name.repository, current)):
        moves.append(PointerMove(name.repository, False, origin, name))
    return tuple(moves)


def _moved_meanwhile(lock: Lock, upgrade: Upgrade) -> tuple[str, ...]:
    """The reasons why an upgrade no longer fits: the user has moved the models that it began with."""
    paired = {model: lock.models[model].pairing.image for model in upgrade.models if model in lock.models}
    return tuple(
        f"{model} was moved to {image} meanwhile"
        for model, image in paired.items()
        if upgrade.before and str(image) != upgrade.before
    )


# The report of a finished upgrade: the differences between the two images, and what was measured of both.


@dataclass(frozen=True)
class UpgradeReport:
    """A finished upgrade: the ``changes`` between the image before and the candidate, what was measured of both in
    words, and the image that the server is on, empty where none runs."""

    upgrade: Upgrade
    changes: tuple[str, ...]
    measured: tuple[str, ...]
    served: str


def made(workspace: Workspace, upgrade: Upgrade) -> UpgradeReport:
    """The report of ``upgrade``, with the image that its server is on now."""
    server = measuring.server_of(workspace, recipe_of_target(workspace, upgrade))
    return UpgradeReport(
        upgrade,
        _changes(workspace, upgrade),
        _measured(workspace, upgrade),
        server.image if server and server.head.service.is_up else "",
    )


def _changes(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    if not upgrade.candidate or not upgrade.image_before:
        return ()
    move = PointerMove(upgrade.target, True, upgrade.image_before, upgrade.candidate_image)
    return pointers.differences(workspace.project, lock_file.read_project_lock(workspace.project), (move,))


def _measured(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    """The last run of each kind of the candidate, with the figures of the image before beside its own."""
    if not upgrade.candidate:
        return ()
    before = _latest(workspace, upgrade.image_before)
    lines = []
    for (kind, name), each in _latest(workspace, upgrade.candidate_image).items():
        words = [f"{kind} {name}: {each.verdict}"]
        other = before.get((kind, name))
        for figure in each.figures:
            same = [old for old in (other.figures if other else ()) if (old.name, old.at) == (figure.name, figure.at)]
            depth = f" at {figure.at['depth']}" if "depth" in figure.at else ""
            was = f"{same[0].mean:.4g} → " if same else ""
            words.append(f"{figure.name}{depth} {was}{figure.mean:.4g} {figure.unit}")
        lines.append(", ".join(words))
    return tuple(lines)


def _latest(workspace: Workspace, name: ImageName | None) -> dict[tuple[str, str], Evidence]:
    runs = store.look_for_runs(workspace.project, name).runs if name else ()
    return {(run.kind, run.name): run for run in runs if not run.foreign}


# The server of a model that is upgraded: as it was until the upgrade is decided, then on the image that counts.


def settle(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
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
    recipe = recipe_of_target(workspace, upgrade)
    if recipe:
        measuring.stop_left_over(workspace, recipe, "the candidate of an upgrade")
    return recipe if upgrade.served else None


# The upgrade command: new pins, a candidate, its evidence, and the decision; a journal lets it go on after a kill.


def upgrade_image(
    workspace: Workspace, text: str, update: Mapping[str, str | None], *, older: bool = False
) -> UpgradeReport:
    """Upgrades the model, recipe or definition called ``text``: builds a candidate with the sources of ``update`` (all
    where there are none) resolved anew, proves and measures it, and moves pins and pointers if nothing is missing. A
    candidate with older versions of packages or sources is built only with ``older``.

    An upgrade that was interrupted goes on where it was. Whatever goes wrong on the way rejects the candidate and is
    told in the report; the model is then served as before. Raises UsageError for what cannot be upgraded, ConflictError
    where another process does so, or the interrupted one was for other sources.
    """
    project = workspace.project
    fresh = begun(workspace, text, update, older=older)
    with upgrade_journal.locked_upgrade(project, fresh.subject):
        upgrade = _interrupted(project, fresh)
        if upgrade is None:
            upgrade_journal.write_upgrade(project, fresh.subject, fresh)
            return _finished(workspace, fresh)
        if update and dict(update) != dict(upgrade.update):
            raise ConflictError(
                f"an upgrade of {fresh.subject} to other sources was interrupted",
                hint=f"`builder upgrade {text}` goes on with it, `builder upgrade {text} --abort` gives it up",
            )
        workspace.report(Message(f"going on with the upgrade that was interrupted: {upgrade.stage}"))
        if upgrade.stage != "settle":
            serve_as_before(workspace, upgrade)
        return _finished(workspace, upgrade)


def abort_upgrade(workspace: Workspace, text: str) -> UpgradeReport:
    """Gives up an upgrade that was interrupted: the model is served as before, and the candidate stays, with its
    evidence. Raises NothingToDoError where there is none, or its pointers have moved already."""
    project = workspace.project
    fresh = begun(workspace, text, {})
    with upgrade_journal.locked_upgrade(project, fresh.subject):
        upgrade = _interrupted(project, fresh)
        if upgrade is None:
            raise NothingToDoError(f"no upgrade of {fresh.subject} was interrupted")
        if upgrade.stage == "promote" and are_moved(lock_file.read_project_lock(project), upgrade):
            upgrade = upgrade_journal.after(upgrade)
        elif not upgrade.result:
            upgrade = upgrade_journal.after(upgrade, ["given up"], aborted=True)
        upgrade_journal.write_upgrade(project, fresh.subject, upgrade)
        return _finished(workspace, upgrade)


def _interrupted(project: Project, fresh: Upgrade) -> Upgrade | None:
    """The upgrade in the journal. What is built and served comes from what was typed for ``fresh``: anybody may have
    written the journal."""
    upgrade = upgrade_journal.read_upgrade(project, fresh.subject)
    return upgrade and replace(upgrade, target=fresh.target, models=fresh.models)


def _finished(workspace: Workspace, upgrade: Upgrade) -> UpgradeReport:
    """Takes every step that is left, the journal written before each. Whatever ends this early, such as ^C, SIGTERM or
    a terminal that closes, the model is served as before."""
    try:
        while upgrade.stage != "done":
            upgrade = _stepped(workspace, upgrade)
            upgrade_journal.write_upgrade(workspace.project, upgrade.subject, upgrade)
    finally:
        if upgrade.stage != "done":
            serve_as_before(workspace, upgrade)
    upgrade_journal.remove_upgrade(workspace.project, upgrade.subject)
    return made(workspace, upgrade)


def _stepped(workspace: Workspace, upgrade: Upgrade) -> Upgrade:
    """Takes the step of the upgrade's stage; returns the upgrade after it."""
    steps_with_reasons = {"prove": _prove, "measure": _measure, "promote": move, "settle": settle}
    try:
        if upgrade.stage == "build":
            (result,) = build.build_targets(workspace, _request(workspace, upgrade))
            return upgrade_journal.after(replace(upgrade, candidate=str(result.image)))
        return upgrade_journal.after(upgrade, steps_with_reasons[upgrade.stage](workspace, upgrade))
    except BuilderError as error:
        hint = f"; {error.hint}" if upgrade.stage == "build" and error.hint else ""
        return upgrade_journal.after(upgrade, [f"{upgrade.stage}: {error.message}{hint}"])


def preview_upgrade(
    workspace: Workspace, text: str, update: Mapping[str, str | None]
) -> tuple[tuple[PlannedImage, BuildOutlook], ...]:
    """The plan of the candidate that `upgrade_image` would build; nothing is built, moved or recorded. Raises what
    `begun` and `build.preview_build` do."""
    return build.preview_build(workspace, _request(workspace, begun(workspace, text, update)))


def _request(workspace: Workspace, upgrade: Upgrade) -> BuildRequest:
    mods: tuple[str, ...] = ()
    lock = lock_file.read_project_lock(workspace.project)
    before = upgrade.image_before
    record = lock.image(before) if before else None
    if before and record and not record.adopted:
        mods = changes.original_build(workspace, before, record).mods
    return BuildRequest(
        (upgrade.target,),
        mods=mods,
        models=upgrade.models,
        update=upgrade.update,
        promote=False,
        candidate=True,
        older=upgrade.older,
    )


def _prove(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    """Proves the candidate; returns what keeps it from being measured at all."""
    return tuple(
        line
        for model, recipe in _recipes(workspace, upgrade)
        for line in proof(workspace, upgrade.candidate_image, model, recipe.file)
    )


def _measure(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    """Measures all that is required; returns what did not pass."""
    failed = [
        _measure_for(workspace, upgrade, model, measuring.request_as_before(workspace, recipe))
        for model, recipe in _recipes(workspace, upgrade)
    ]
    serve_as_before(workspace, upgrade)
    reasons = requirement_reasons(workspace, upgrade.candidate_image, upgrade.models)
    return (*reasons, *filter(None, failed)) if reasons else ()


def _recipes(workspace: Workspace, upgrade: Upgrade) -> Iterator[tuple[str, Recipe]]:
    """The models of the upgrade, each with the recipe that serves it."""
    for model in upgrade.models:
        if recipe := recipe_of(workspace, upgrade, model):
            yield model, recipe


def _measure_for(workspace: Workspace, upgrade: Upgrade, model: str, request: ServeRequest) -> str:
    """Takes the probes and figures that a model requires of the candidate. What is to be compared is measured in turn
    with the current image, in as many rounds as it takes to tell the two apart; a candidate that fails gets no further
    one. Returns why the current image failed, and nothing where it did not: no further round helps then."""
    name = upgrade.candidate_image
    failed = ""
    for number in range(requirements.MOST_ROUNDS):
        in_turn = figures_in_turn(workspace, name, model)
        if number and not in_turn:
            break
        if in_turn:
            workspace.report(Message(f"round {number + 1}: {upgrade.before}, to compare with, then {name}"))
            serve_as_before(workspace, upgrade)
            failed = measure_current(workspace, model, in_turn)
        with served(workspace, name, request) as measured:
            if not probe(workspace, name, model, measured):
                break
            if not measure(workspace, name, model, measured, in_turn) or failed:
                break
    return failed

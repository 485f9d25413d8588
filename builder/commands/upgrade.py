"""The upgrade command makes new pins, builds a candidate, and accepts or rejects it by its evidence.

The command and the states of the journal come first, then the steps: the target, the build, the proof, the
measurements, the move of the pointers, the server, and the report. A killed upgrade continues from its journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from builder.base import words
from builder.base.errors import BuilderError, ConflictError, MeasuringError, NothingToDoError, UsageError
from builder.base.events import Message
from builder.base.values import dataclass, replace
from builder.building import work_folder
from builder.building.request import BuildRequest
from builder.commands import build, comparing, diff, measuring, servers, why
from builder.definitions import build_target, image
from builder.engine import machine
from builder.evidence import requirements, run_record, standing
from builder.lab import changes, upgrade_journal
from builder.lab.measure import measurement, probes
from builder.lab.upgrade_journal import Result, Upgrade
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock
from builder.numbers import images_lock, pointers
from builder.pins import pinning
from builder.serving import image_words, selection
from builder.serving.preparation import ServeRequest

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.building.bake import BuildOutlook
    from builder.building.resolve import PlannedImage
    from builder.definitions.configuration import BenchProfile, RequiredFigure
    from builder.definitions.recipe import Recipe
    from builder.lab.measure.measurement import MeasuredServer
    from builder.numbers.workspace import Workspace


@dataclass(frozen=True)
class UpgradeReport:
    """A finished upgrade: the ``changes`` between the two images, their last ``runs`` side by side, and the image that
    is ``served`` (empty if none is). ``machine`` lists changes of the machine since the previous image worked; they may
    also be the reason."""

    upgrade: Upgrade
    changes: tuple[str, ...]
    runs: tuple[standing.RunPair, ...]
    served: str
    machine: tuple[str, ...] = ()


def upgrade_image(
    workspace: Workspace,
    text: str,
    update: Mapping[str, str | None],
    *,
    older: bool = False,
    machine_differs: bool = False,
) -> UpgradeReport:
    """Upgrades ``text``, a model or the model of a recipe. Resolves the sources of ``update`` (all if empty) again,
    builds a candidate, proves and measures it, and moves pins and pointers if no evidence is missing. ``older`` allows
    older packages or sources. ``machine_differs`` allows a machine that changed since the present image worked.

    An interrupted upgrade continues. Any error on the way rejects the candidate and is reported; the model is then
    served as before. Raises ConflictError if the interrupted upgrade was for other sources, or the machine changed.
    """
    fresh = _begun(workspace, text, update, older=older)
    journal = upgrade_journal.journal_of(workspace.project, fresh.model)
    with journal.hold():
        upgrade = _interrupted(workspace.project, fresh)
        if upgrade is None:
            if fresh.image_before and not machine_differs:
                why.require_same_machine(fresh.image_before, _machine_since(workspace, fresh), fresh.model)
            journal.write(fresh)
            return _finished(workspace, fresh)
        if update and dict(update) != dict(upgrade.update):
            again = f"builder upgrade {words.shell_word(fresh.model)}"
            hint = f"`{again}` continues it, `{again} --abort` cancels it"
            raise ConflictError(f"an upgrade of {fresh.model} to other sources was interrupted", hint=hint)
        workspace.report(Message(f"continuing the interrupted upgrade: {upgrade.progress}"))
        if not upgrade.result:
            serve_as_before(workspace, upgrade)
        return _finished(workspace, upgrade)


def abort_upgrade(workspace: Workspace, text: str) -> UpgradeReport:
    """Cancels an interrupted upgrade: the model is served as before. The candidate and its evidence are kept."""
    fresh = _begun(workspace, text, {})
    journal = upgrade_journal.journal_of(workspace.project, fresh.model)
    with journal.hold():
        upgrade = _interrupted(workspace.project, fresh)
        if upgrade is None:
            raise NothingToDoError(f"no upgrade of {fresh.model} was interrupted")
        if not upgrade.result:
            is_moved = upgrade.candidate and _is_moved(lock_file.read_project_lock(workspace.project), upgrade)
            upgrade = (
                _ended(upgrade, "promoted") if is_moved else _ended(upgrade, "aborted", "cancelled with `--abort`")
            )
            journal.write(upgrade)
        return _finished(workspace, upgrade)


def preview_upgrade(
    workspace: Workspace, text: str, update: Mapping[str, str | None]
) -> tuple[tuple[PlannedImage, BuildOutlook], ...]:
    """The plan of the candidate that `upgrade_image` would build. Nothing is built, moved or recorded."""
    return build.preview_build(workspace, _request(workspace, _begun(workspace, text, update)))


def _begun(workspace: Workspace, text: str, update: Mapping[str, str | None], *, older: bool = False) -> Upgrade:
    """The upgrade of ``text``. Raises UsageError if ``text`` names no model, or ``update`` names an unknown source."""
    project = workspace.project
    lock = lock_file.read_project_lock(project)
    if text in lock.models:
        recipe: Recipe | None = selection.select_image(project, lock, text).recipe
    else:
        recipe = build_target.find_target(project, text, lock.models).recipe
    model = text if text in lock.models else recipe.model if recipe else None
    if recipe is None:
        builds = f"`builder build {words.shell_word(text)} --update SOURCE` builds it from newer sources"
        hint = f"{builds}; `builder upgrade MODEL` upgrades a model"
        raise UsageError(f"`{text}` does not name a model", hint=hint)
    if not model:
        message = f"{recipe.file}: `model` names no model on Hugging Face"
        raise UsageError(message, hint="add `model: ORG/NAME` to the recipe")
    definition = build_target.definition_of(project, build_target.find_target(project, recipe.file))
    chain = image.load_chain(project, definition, machine.platform(workspace.engine))
    every = {name: None for part in chain for name in pinning.pin_names(part)}
    if unknown := [name for name in update if name not in every]:
        suggestion = words.did_you_mean(unknown[0], every, code=True)
        hint = suggestion or f"its sources: {', '.join(every)}"
        raise UsageError(f"{definition} has no source `{unknown[0]}`", hint=hint)
    paired, record = lock.models.get(model), lock.images.get(recipe.repository)
    before = f"{recipe.repository}:{record.current}" if record and record.current else ""
    return Upgrade(
        target=recipe.file,
        model=model,
        update=dict(update) or every,
        before=str(paired.pairing.image) if paired else before,
        started=words.now(),
        served=measuring.server_of(workspace, recipe) is not None,
        older=older,
    )


def _interrupted(project: Project, fresh: Upgrade) -> Upgrade | None:
    """The upgrade in the journal, or None. The journal is untrusted, so recipe and model come from ``fresh``."""
    upgrade = upgrade_journal.journal_of(project, fresh.model).read()
    return upgrade and replace(upgrade, target=fresh.target, model=fresh.model)


def _machine_since(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    before = upgrade.image_before
    return why.machine_since(workspace, before, upgrade.model) if before else ()


# The steps. Each can be repeated: a build uses its cache, existing evidence is not measured again, and the move is one
# transaction.


def _ended(upgrade: Upgrade, result: Result, *reasons: str) -> Upgrade:
    return replace(upgrade, result=result, why=reasons)


def _finished(workspace: Workspace, upgrade: Upgrade) -> UpgradeReport:
    """Runs all remaining steps. If ^C, SIGTERM or a closed terminal ends this early, the model is served as before."""
    # Before the servers start: a candidate that answers records the machine again.
    differences = _machine_since(workspace, upgrade)
    journal = upgrade_journal.journal_of(workspace.project, upgrade.model)
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
    """Builds the candidate, tests it, and moves pins and pointers if no evidence is missing. Returns the upgrade with
    its result. Any error rejects the candidate."""
    step = "build"
    try:
        if not upgrade.candidate:
            (built,) = build.build_targets(workspace, _request(workspace, upgrade))
            upgrade = replace(upgrade, candidate=str(built.image))
            upgrade_journal.journal_of(workspace.project, upgrade.model).write(upgrade)
        if upgrade.candidate == upgrade.before:
            return _ended(upgrade, "unchanged")
        if _is_moved(lock_file.read_project_lock(workspace.project), upgrade):  # killed right after the move
            return _ended(upgrade, "promoted")
        for step, act in (("prove", _prove), ("measure", _measure), ("promote", _promote)):  # noqa: B007
            if reasons := act(workspace, upgrade):
                return _ended(upgrade, "rejected", *reasons)
        return _ended(upgrade, "promoted")
    except BuilderError as error:
        hint = f"; {error.hint}" if step == "build" and error.hint else ""
        return _ended(upgrade, "rejected", f"{step}: {error.message}{hint}")


def _request(workspace: Workspace, upgrade: Upgrade) -> BuildRequest:
    before = upgrade.image_before
    record = lock_file.read_project_lock(workspace.project).image(before) if before else None
    return BuildRequest(
        (upgrade.target,),
        mods=changes.extra_mods(workspace, before, record) if before and record and not record.adopted else (),
        models=(upgrade.model,),
        update=upgrade.update,
        promote=False,
        candidate=True,
        older=upgrade.older,
    )


def _recipe(workspace: Workspace, upgrade: Upgrade) -> Recipe:
    recipe = build_target.find_target(workspace.project, upgrade.target).recipe
    if recipe is None:  # the recipe was removed during the upgrade
        raise UsageError(f"{upgrade.target} is no longer a recipe")
    return recipe


def _prove(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    """Proves the candidate unless it is already proven. Returns the failures; a broken candidate is not measured."""
    name = upgrade.candidate_image
    runs = [run for run in run_record.of_image(workspace.project, name) if run.subject.model == upgrade.model]
    latest = standing.latest(runs, "prove")
    if latest is None or any(each.kind == "prove" for each in _lacking(workspace, name, upgrade.model)):
        (proved,) = measuring.prove_image(workspace, str(name), (upgrade.target,))
        latest = proved.evidence
    broken = latest.findings[:3] if latest.verdict == "fail" else ()
    return tuple(f"{each.check} at {each.at}: {next(iter(each.text.splitlines()), '')}" for each in broken)


# The measurements that the model requires of the candidate.


def _lacking(workspace: Workspace, name: ImageName, model: str) -> tuple[requirements.MissingEvidence, ...]:
    """The evidence that ``model`` requires and the image ``name`` lacks."""
    lock = lock_file.read_project_lock(workspace.project)
    return requirements.missing(workspace.project, lock, name, model, environ=workspace.environment)


def _measure(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    """Measures everything that is required, and returns what did not pass. If nothing else is missing, the answers of
    the candidate are compared with the answers of the current image."""
    name, model = upgrade.candidate_image, upgrade.model
    request = measuring.request_as_before(workspace, _recipe(workspace, upgrade))
    failed = _measure_in_rounds(workspace, upgrade, request)
    lacking = _lacking(workspace, name, model)
    if upgrade.image_before and not failed and lacking and {each.kind for each in lacking} == {"same"}:
        comparing.require_same(workspace, model, upgrade.image_before, name)
        lacking = _lacking(workspace, name, model)
    serve_as_before(workspace, upgrade)
    return (*map(str, lacking), *filter(None, [failed])) if lacking else ()


def _measure_in_rounds(workspace: Workspace, upgrade: Upgrade, request: ServeRequest) -> str:
    """Runs the probes and measures the figures that are required of the candidate. Figures to compare are measured for
    the current image and the candidate in turn, until the difference is clear. No round follows a failure. Returns why
    the current image failed, or an empty text."""
    name, model = upgrade.candidate_image, upgrade.model
    failed = ""
    for number in range(requirements.MOST_ROUNDS):
        lock = lock_file.read_project_lock(workspace.project)
        in_turn = requirements.figures_in_turn(workspace.project, lock, name, model, workspace.environment)
        if number and not in_turn:
            break
        if in_turn:
            workspace.report(Message(f"round {number + 1}: measuring {upgrade.before} for comparison, then {name}"))
            serve_as_before(workspace, upgrade)
            failed = measure_current(workspace, model, in_turn)
        with measuring.candidate_server(workspace, request, name) as server:
            measured = measurement.find_measured_server(server)
            if not _probe(workspace, name, model, measured):
                break
            if not measure(workspace, name, model, measured, in_turn) or failed:
                break
    return failed


def measure_current(workspace: Workspace, model: str, figures: Sequence[RequiredFigure]) -> str:
    """Measures ``figures`` of the image that serves ``model`` now. Returns why that failed, or an empty text. A failure
    is not recorded: an upgrade judges only its candidate."""
    for profile in _profiles(workspace, figures):
        with measuring.chosen_server(workspace, model) as server:
            outcome = measuring.measure_server(workspace, server, profile)
            if outcome.verdict == "fail":
                reason = requirements.first_finding(outcome.findings, outcome.verdict)
                return (
                    f"the current image, {server.running.image}, failed the bench {profile.name}, so the candidate"
                    f" could not be compared with it{reason}"
                )
            measurement.keep_run(workspace, server, outcome)
    return ""


def _probe(workspace: Workspace, name: ImageName, model: str, server: MeasuredServer) -> bool:
    """Runs the probes that ``name`` lacks on its server, and records the results. False if a probe did not pass."""
    for each in [each.name for each in _lacking(workspace, name, model) if each.kind == "probe"]:
        probes.require(workspace.project, each)
        outcome = probes.run_probe(workspace.project, server.model, each, workspace.environment, workspace.report)
        measurement.keep_run(workspace, server, outcome)
        if outcome.verdict != "pass":
            return False
    return True


def measure(
    workspace: Workspace, name: ImageName, model: str, server: MeasuredServer, also: Sequence[RequiredFigure]
) -> bool:
    """Measures the figures that ``name`` lacks and the figures ``also``, and records the results. False if a bench
    failed."""
    lacking = {each.name for each in _lacking(workspace, name, model) if each.kind == "bench"}
    lock = lock_file.read_project_lock(workspace.project)
    recipe = requirements.recipe_of(workspace.project, lock, name, model)
    figures = requirements.required(workspace.project, model, recipe).figures
    for profile in _profiles(workspace, [each for each in figures if each in also or each.figure in lacking]):
        outcome = measuring.measure_server(workspace, server, profile)
        measurement.keep_run(workspace, server, outcome)
        if outcome.verdict == "fail":
            return False
    return True


def _profiles(workspace: Workspace, figures: Sequence[RequiredFigure]) -> tuple[BenchProfile, ...]:
    """The fewest bench profiles that measure all ``figures``, preferring the shortest."""
    chosen: dict[str, BenchProfile] = {}
    for figure in figures:
        suitable = requirements.suitable_profiles(workspace.project, figure)
        if not suitable:
            hint = "write a profile with that depth and concurrency under `bench:` in builder.yaml"
            raise MeasuringError(f"no profile of `builder bench` measures {figure.figure}", hint=hint)
        profile = next((profile for profile in suitable if profile.name in chosen), suitable[0])
        chosen[profile.name] = profile
    return tuple(chosen.values())


# Moving pins, pairing and ``latest`` to the candidate in one transaction.


def _promote(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    """Moves pins, pairing and ``latest`` in one transaction. If it cannot, it moves nothing and returns the reasons.
    ``latest`` moves only if it is unset, or names the previous image."""
    name, before = upgrade.candidate_image, upgrade.image_before
    # The candidate was built with these pins.
    pins = lock_file.read_record(workspace.project.build_directory(name.repository, name.number)).pins
    with images_lock.transaction(workspace) as transaction:
        lock = transaction.lock
        paired = lock.models.get(upgrade.model)
        if paired and before and paired.pairing.image != before:  # the user moved it
            return (f"another command paired {upgrade.model} with {paired.pairing.image} during the upgrade",)
        if lacking := _lacking(workspace, name, upgrade.model):
            return tuple(map(str, lacking))
        moves = [pointers.PointerMove(upgrade.model, True, before, name)]
        current = lock.images[name.repository].current
        if current is None or before == ImageName(name.repository, current):
            moves.append(pointers.PointerMove(name.repository, False, before, name))
        pointers.require_allowed(workspace.engine, lock, moves, force=False)
        for definition, by_platform in pins.items():
            for platform, of_platform in by_platform.items():
                lock = lock.with_pins(definition, platform, of_platform)
        lock = pointers.apply_moves(lock, moves)
        model = lock.models[upgrade.model]
        pairing = replace(model.pairing, recipe=upgrade.target)
        transaction.commit(lock.with_model(upgrade.model, replace(model, pairing=pairing)))
    return ()


def _is_moved(lock: Lock, upgrade: Upgrade) -> bool:
    paired = lock.models.get(upgrade.model)
    return paired is not None and paired.pairing.image == upgrade.candidate_image


# The server, and the report.


def _settle(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    """Serves the image that the result selects, if a server ran at the start. Returns notes about the server."""
    if upgrade.result != "promoted":
        serve_as_before(workspace, upgrade)
        return ()
    recipe = _without_candidates(workspace, upgrade)
    server = measuring.server_of(workspace, recipe)
    if recipe is None or (server and server.image == upgrade.candidate and server.head.service.is_up):
        return ()
    served = servers.restart_server(workspace, ServeRequest(recipe.file, {}), detach=False)
    line = f"{recipe.model} was put back on {served.server.image}: {served.put_back_reason}"
    return (line,) if served.put_back_from else ()


def serve_as_before(workspace: Workspace, upgrade: Upgrade) -> None:
    """Removes what a candidate left. If the model's own server ran at the start, starts it again unchanged."""
    work_folder.remove_stale(workspace)
    if recipe := _without_candidates(workspace, upgrade):
        measuring.serve_again(workspace, recipe)


def _without_candidates(workspace: Workspace, upgrade: Upgrade) -> Recipe | None:
    """Stops servers of candidates. Returns the recipe of the server that ran at the start (None if no server ran)."""
    recipe = _recipe(workspace, upgrade)
    servers.stop_candidates(workspace, recipe.file, "the candidate of an upgrade")
    return recipe if upgrade.served else None


def _reported(workspace: Workspace, upgrade: Upgrade, machine: tuple[str, ...]) -> UpgradeReport:
    recipe = _recipe(workspace, upgrade)
    server = measuring.server_of(workspace, recipe)
    served = server.image if server and server.head.service.is_up else ""
    before = upgrade.image_before
    if not before or not upgrade.candidate:
        return UpgradeReport(upgrade, (), (), served, machine)
    project, candidate = workspace.project, upgrade.candidate_image
    lock = lock_file.read_project_lock(project)
    lost = image_words.lost(workspace, upgrade.before, upgrade.candidate, [recipe])
    changed = pointers.differences(project, lock, [pointers.PointerMove(upgrade.model, True, before, candidate)])
    return UpgradeReport(upgrade, (*lost, *changed), diff.last_runs(project, lock, before, candidate), served, machine)

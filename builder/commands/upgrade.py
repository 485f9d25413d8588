"""The upgrade command: new pins, a candidate, its evidence, and the decision; a journal lets it go on after a kill."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.building.request import BuildRequest
from builder.commands import build
from builder.commands.shared import beside
from builder.commands.upgrade_parts import candidate, pointers, report, server, target
from builder.comparing import current_build
from builder.errors import BuilderError, ConflictError, NothingToDoError
from builder.events import Message
from builder.evidence import statistics
from builder.lock import reading
from builder.upgrading import journal, steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.building.outlook import BuildOutlook
    from builder.building.planning import PlannedImage
    from builder.commands.upgrade_parts.report import UpgradeReport
    from builder.definitions.recipes.recipe import Recipe
    from builder.project import Project
    from builder.serving.preparation import ServeRequest
    from builder.upgrading.steps import Upgrade
    from builder.workspace import Workspace


def run(workspace: Workspace, text: str, update: Mapping[str, str | None], *, older: bool = False) -> UpgradeReport:
    """Upgrades the model, recipe or definition called ``text``: builds a candidate with the sources of ``update`` (all
    where there are none) resolved anew, proves and measures it, and moves pins and pointers if nothing is missing. A
    candidate with older versions of packages or sources is built only with ``older``.

    An upgrade that was interrupted goes on where it was. Whatever goes wrong on the way rejects the candidate and is
    told in the report; the model is then served as before. Raises UsageError for what cannot be upgraded, ConflictError
    where another process does so, or the interrupted one was for other sources.
    """
    project = workspace.project
    fresh = target.begun(workspace, text, update, older=older)
    with journal.locked(project, fresh.subject):
        upgrade = _interrupted(project, fresh)
        if upgrade is None:
            journal.write(project, fresh.subject, fresh)
            return _finished(workspace, fresh)
        if update and dict(update) != dict(upgrade.update):
            raise ConflictError(
                f"an upgrade of {fresh.subject} to other sources was interrupted",
                hint=f"`builder upgrade {text}` goes on with it, `builder upgrade {text} --abort` gives it up",
            )
        workspace.report(Message(f"going on with the upgrade that was interrupted: {upgrade.stage}"))
        if upgrade.stage != "settle":
            server.serve_as_before(workspace, upgrade)
        return _finished(workspace, upgrade)


def abort(workspace: Workspace, text: str) -> UpgradeReport:
    """Gives up an upgrade that was interrupted: the model is served as before, and the candidate stays, with its
    evidence. Raises NothingToDoError where there is none, or its pointers have moved already."""
    project = workspace.project
    fresh = target.begun(workspace, text, {})
    with journal.locked(project, fresh.subject):
        upgrade = _interrupted(project, fresh)
        if upgrade is None:
            raise NothingToDoError(f"no upgrade of {fresh.subject} was interrupted")
        if upgrade.stage == "promote" and pointers.are_moved(reading.of(project), upgrade):
            upgrade = steps.after(upgrade)
        elif not upgrade.result:
            upgrade = steps.after(upgrade, ["given up"], aborted=True)
        journal.write(project, fresh.subject, upgrade)
        return _finished(workspace, upgrade)


def _interrupted(project: Project, fresh: Upgrade) -> Upgrade | None:
    """The upgrade in the journal. What is built and served comes from what was typed for ``fresh``: anybody may have
    written the journal."""
    upgrade = journal.read(project, fresh.subject)
    return upgrade and replace(upgrade, target=fresh.target, models=fresh.models)


def _finished(workspace: Workspace, upgrade: Upgrade) -> UpgradeReport:
    """Takes every step that is left, the journal written before each. Whatever ends this early, such as ^C, SIGTERM or
    a terminal that closes, the model is served as before."""
    try:
        while upgrade.stage != "done":
            upgrade = _stepped(workspace, upgrade)
            journal.write(workspace.project, upgrade.subject, upgrade)
    finally:
        if upgrade.stage != "done":
            server.serve_as_before(workspace, upgrade)
    journal.remove(workspace.project, upgrade.subject)
    return report.made(workspace, upgrade)


def _stepped(workspace: Workspace, upgrade: Upgrade) -> Upgrade:
    """Takes the step of the upgrade's stage; returns the upgrade after it."""
    steps_with_reasons = {"prove": _prove, "measure": _measure, "promote": pointers.move, "settle": server.settle}
    try:
        if upgrade.stage == "build":
            (result,) = build.run(workspace, _request(workspace, upgrade))
            return steps.after(replace(upgrade, candidate=str(result.image)))
        return steps.after(upgrade, steps_with_reasons[upgrade.stage](workspace, upgrade))
    except BuilderError as error:
        hint = f"; {error.hint}" if upgrade.stage == "build" and error.hint else ""
        return steps.after(upgrade, [f"{upgrade.stage}: {error.message}{hint}"])


def preview(
    workspace: Workspace, text: str, update: Mapping[str, str | None]
) -> tuple[tuple[PlannedImage, BuildOutlook], ...]:
    """The plan of the candidate that `run` would build; nothing is built, moved or recorded. Raises what `target.begun`
    and `build.preview` do."""
    return build.preview(workspace, _request(workspace, target.begun(workspace, text, update)))


def _request(workspace: Workspace, upgrade: Upgrade) -> BuildRequest:
    mods: tuple[str, ...] = ()
    lock = reading.of(workspace.project)
    before = upgrade.image_before
    record = lock.image(before) if before else None
    if before and record and not record.adopted:
        mods = current_build.original_build(workspace, before, record).mods
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
        for line in candidate.proof(workspace, upgrade.candidate_image, model, recipe.file)
    )


def _measure(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    """Measures all that is required; returns what did not pass."""
    failed = [
        _measure_for(workspace, upgrade, model, beside.request_as_before(workspace, recipe))
        for model, recipe in _recipes(workspace, upgrade)
    ]
    server.serve_as_before(workspace, upgrade)
    reasons = candidate.reasons(workspace, upgrade.candidate_image, upgrade.models)
    return (*reasons, *filter(None, failed)) if reasons else ()


def _recipes(workspace: Workspace, upgrade: Upgrade) -> Iterator[tuple[str, Recipe]]:
    """The models of the upgrade, each with the recipe that serves it."""
    for model in upgrade.models:
        if recipe := target.recipe_of(workspace, upgrade, model):
            yield model, recipe


def _measure_for(workspace: Workspace, upgrade: Upgrade, model: str, request: ServeRequest) -> str:
    """Takes the probes and figures that a model requires of the candidate. What is to be compared is measured in turn
    with the current image, in as many rounds as it takes to tell the two apart; a candidate that fails gets no further
    one. Returns why the current image failed, and nothing where it did not: no further round helps then."""
    name = upgrade.candidate_image
    failed = ""
    for number in range(statistics.MOST_ROUNDS):
        in_turn = candidate.figures_in_turn(workspace, name, model)
        if number and not in_turn:
            break
        if in_turn:
            workspace.report(Message(f"round {number + 1}: {upgrade.before}, to compare with, then {name}"))
            server.serve_as_before(workspace, upgrade)
            failed = candidate.measure_current(workspace, model, in_turn)
        with candidate.served(workspace, name, request) as measured:
            if not candidate.probe(workspace, name, model, measured):
                break
            if not candidate.measure(workspace, name, model, measured, in_turn) or failed:
                break
    return failed

"""``builder build``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder import humanize
from builder.cli import table, verbosity
from builder.cli.completers import names
from builder.cli.context import Context, json_option, pass_context
from builder.cli.options import parse_settings, parse_update, platform_option, set_option, update_option
from builder.cli.output import print_json, print_note, print_result
from builder.cli.terminal_text import styled
from builder.cli.verbosity import verbosity_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.building.outlook import BuildOutlook
    from builder.building.planning import PlannedImage
    from builder.building.request import AlreadyBuilt, BuildRequest, Built, HeldPointer
    from builder.commands.push import PushedImage
    from builder.evidence.proof import ProvedImage
    from builder.plan.model import Step


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="TARGET…", shell_complete=names("definitions", "recipes"))
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="M",
    shell_complete=names("models"),
    help="Pair another model with the image.",
)
@click.option("--mod", "mods", multiple=True, metavar="X", shell_complete=names("mods"), help="Bake another mod.")
@update_option
@platform_option
@set_option
@click.option("--locked", is_flag=True, help="Resolve nothing; fail if images.lock lacks a pin that is needed.")
@click.option("--force", is_flag=True, help="Build even if nothing has changed.")
@click.option("--no-promote", is_flag=True, help="Leave `latest` where it is.")
@click.option("--promote-anyway", is_flag=True, help="Move `latest` and models even if evidence failed or is missing.")
@click.option("--builder", metavar="NAME", help="Build with this `docker buildx` instance, and load the result.")
@click.option("--push", is_flag=True, help="Push the number to the registry of builder.yaml as well.")
@click.option("--ignore-disk", is_flag=True, help="Build even where the disk is expected to be too small.")
@click.option("--no-prove", is_flag=True, help="Do not prove how templates and parsers of the image behave.")
@click.option(
    "--without-check",
    "without_checks",
    multiple=True,
    metavar="NAME",
    help="Do not run the check of this name, which a failure printed. May be given again; requires --note.",
)
@click.option(
    "--note", default="", metavar="WHY", help="The reason to record with --promote-anyway or --without-check."
)
@click.option("--dry-run", is_flag=True, help="Print the plan, and change nothing.")
@click.option(
    "--write",
    "folder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="With --dry-run: write the build directory, with its Dockerfile, to FOLDER, which must be new or empty.",
)
@json_option
@verbosity_options
@pass_context
def build(
    context: Context,
    targets: tuple[str, ...],
    models: tuple[str, ...],
    mods: tuple[str, ...],
    update: tuple[str, ...],
    platform: str | None,
    settings: tuple[str, ...],
    locked: bool,
    force: bool,
    no_promote: bool,
    promote_anyway: bool,
    builder: str | None,
    push: bool,
    ignore_disk: bool,
    no_prove: bool,
    without_checks: tuple[str, ...],
    note: str,
    dry_run: bool,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Build a numbered image from a recipe or a definition.

    TARGET is a recipe (recipes/NAME.yaml, or its name), a model that has one, or an image definition. Several are built
    in one run, and what they share is built once. Nothing is built if nothing has changed since a number that still
    exists.

    Where a number before was proven for the recipe's model, or something requires it, the image is proven as `builder
    prove` does, unless all that changed has nothing to do with templates and parsers. Where the proof fails, the number
    is kept, and neither `latest` nor the model moves to it. A change is reported, and both move.

    An image whose check fails gets no number. Where that check is wrong on this machine, --without-check NAME leaves it
    out: the number records that, and `list` and `show` show it with the note.

    With --push, an image that --builder builds goes through the registry: only the layers that either side lacks are
    transferred.

    \b
    Ends with
      0  if every image is built
      6  if a build, a check or a proof failed
    """
    note = note.strip()
    if bool(note) != bool(promote_anyway or without_checks):
        raise click.UsageError("--note WHY goes with --promote-anyway and --without-check NAME, and both require it")
    if promote_anyway and no_promote:
        raise click.UsageError("--promote-anyway goes with no --no-promote")
    from builder.building.request import BuildRequest
    from builder.cli import progress
    from builder.commands import build as command

    if folder and not dry_run:
        raise click.UsageError("--write goes with --dry-run: a build writes to builds/")
    if folder and len(targets) > 1:
        raise click.UsageError("--write takes one TARGET: each has a folder of its own")
    request = BuildRequest(
        targets,
        mods=mods,
        models=models,
        update=parse_update(update),
        platform=platform,
        settings=parse_settings(settings),
        locked=locked,
        force=force,
        promote=not no_promote,
        promote_anyway=note if promote_anyway else "",
        builder=builder,
        push=push,
        ignore_disk=ignore_disk,
        prove=not no_prove,
        without_checks=dict.fromkeys(without_checks, note),
    )
    if dry_run:
        _preview(context, request, folder, as_json=as_json)
        return
    results: list[AlreadyBuilt | Built | PushedImage] = []
    try:
        with progress.reporter() as report:
            # Those that succeeded are printed even if a later one fails.
            results.extend(command.run(context.workspace(report), request))
    except KeyboardInterrupt:
        if results:
            raise KeyboardInterrupt("what is told above stays; run it again for the rest") from None
        raise
    finally:
        _print_results(results, as_json=as_json)


def _preview(context: Context, request: BuildRequest, folder: Path | None, *, as_json: bool) -> None:
    from builder.cli import build_json
    from builder.commands import build as command

    planned = command.preview(context.workspace(), request)
    if folder:
        command.write_directory(context.project, planned[0][0], folder)
    if as_json:
        print_json(build_json.document(planned=planned, written=folder))
        return
    for image, outlook in planned:
        print_plan(image, outlook, request.force)
    if folder:
        print_result(f"the build directory is in {folder}: `{folder / 'Dockerfile'}` is the first file to read")


def _print_results(results: Sequence[AlreadyBuilt | Built | PushedImage], *, as_json: bool) -> None:
    if as_json and results:
        from builder.cli import build_json

        print_json(build_json.document(results))
    elif not as_json:
        for result in results:
            _print_outcome(result)


def _print_outcome(result: AlreadyBuilt | Built | PushedImage) -> None:
    from builder.building.request import AlreadyBuilt, Built

    if isinstance(result, AlreadyBuilt):
        _print_already_built(result)
    elif isinstance(result, Built):
        _print_built(result)
    else:
        from builder.cli.push import print_pushed

        print_pushed(result)


def _print_already_built(result: AlreadyBuilt) -> None:
    from builder.building.request import HeldPointer

    repository, _, number = result.image.rpartition(":")
    print_result(
        f"already built as {result.image}" + (", which is marked bad: --force builds it again" if result.bad else "")
    )
    has_failed = any(outcome.failed for outcome in result.models)  # what failed is not recommended
    if result.current == "nothing":
        go = f"; `builder promote {result.image}` makes {result.image} current"
        print_result("no image is current" + ("" if has_failed else go))
    elif result.current and has_failed:
        print_result(f"current is {result.current}")
    elif result.current:
        go = f"builder rollback {repository} --to {number}"
        print_result(f"current is {result.current}; `{go}` makes {result.image} current")
    for outcome in result.models:
        model = outcome.model
        if outcome.state == "paired":
            print_result(f"{model} is now paired with {result.image}")
        elif outcome.state == "waiting":
            _print_held(HeldPointer(model, True, outcome.image, outcome.missing, outcome.failed), result.image)
        elif outcome.state == "unpaired":
            print_result(f"{model} is not paired with it; `builder pair {model} {result.image} --force` does that")
        else:
            is_here = outcome.image.rpartition(":")[0] == repository
            go = f"builder rollback {model} --to {number}" if is_here else f"builder pair {model} {result.image}"
            print_result(f"{model} stays paired with {outcome.image}; `{go}` moves it")


def _print_held(waiting: HeldPointer, image: str) -> None:
    """Prints a pointer that a build left where it is, what is missing, and the command that moves it then."""
    stays = f"stays at {waiting.stays}" if waiting.stays else "is nowhere yet"
    moves = f"builder pair {waiting.what} {image}" if waiting.is_model else f"builder promote {image}"
    then = f": {image} did not pass" if waiting.failed else f"; once its evidence is there: `{moves}`"
    print_result(f"  {waiting.what} {stays}{then}")
    for missing, command in waiting.missing:
        print_result(f"    {missing}; `{command}`", hanging=6)


def print_plan(image: PlannedImage, outlook: BuildOutlook, force: bool) -> None:
    """Prints the steps of a build and what it is expected to take."""
    plan, comparison = image.plan, image.comparison
    rows = []
    for number, step in enumerate(plan.steps):
        takes = f"{len(step.takes)} locked" if step.name.endswith("packages") else _takes(step)
        rows.append(("built" if number < image.kept_steps else "to build", step.name, takes))
    table.print_table(("", "STEP", "TAKES"), rows)
    for warning in plan.warnings:
        print_result(f"note: {warning}")
    for line in outlook.lines:
        print_result(line)
    print_result(f"input hash {plan.input_hash}")
    if comparison.existing:
        print_result(f"already built as {comparison.existing}" + ("; --force would build it again" if force else ""))
    else:
        print_result(f"would build the next number of {plan.repository}, because")
        for reason in comparison.reasons:
            print_result(f"  {reason}")


def _takes(step: Step) -> str:
    return ", ".join(f"{key} {humanize.digest(value)}" for key, value in step.takes.items())


def _print_built(built: Built) -> None:
    layers = f"{built.new_layers} of {built.layers} layers new" if built.new_layers < built.layers else "all layers new"
    cost = f"{humanize.size(built.size)}, {layers}, {built.cached_steps} of {built.steps} steps cached"
    print_result(styled(f"built {built.image}", bold=True) + f" in {humanize.duration(built.seconds)}: {cost}")
    for model in built.models:
        before = built.taken_from.get(model)
        print_result(f"  paired with {model}" + (f", in place of {before}" if before else ""))
    for waiting in built.waiting:
        _print_held(waiting, built.image)
    for name, reason in built.unchecked.items():
        print_result(f"  not checked: {name}: {reason}", hanging=4)
    for memory in built.compiled:
        jobs = humanize.counted(memory.jobs, "job")
        a_job = memory.mib / memory.jobs / 1024
        print_result(f"  {memory.source} was compiled by {jobs} in {memory.mib / 1024:.1f} GiB: {a_job:.1f} GiB a job")
    for proof in built.proofs:
        _print_proof(proof)
        if proof.evidence.verdict == "changed" and proof.reference:
            back = f"`builder rollback {proof.evidence.subject.model}` goes back"
            print_result(f"  `builder diff {proof.reference} {built.image}` shows what changed; {back}")
    for change in built.changes:
        print_result(f"  {change}")
    if verbosity.level() != "quiet":
        print_note(f"  log: {built.log}")


def _print_proof(result: ProvedImage) -> None:
    from builder.cli import prove

    if result.evidence.verdict == "pass":
        print_result(f"  proven for {result.evidence.subject.model}{prove.summary(result.evidence)}")
    else:
        prove.print_proof(result)

"""The command line of builder build, rebuild and upgrade."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import commands
from builder.base import words
from builder.building.request import BuildOutcome, BuildRequest, Built, HeldPointer
from builder.cli import options, output
from builder.cli.options import Context, json_option, names, repeated, update_option, verbosity_and_context, without
from builder.cli.output import data, print_json, print_note, print_result, styled

if TYPE_CHECKING:
    from builder.building.bake import BuildOutlook
    from builder.building.resolve import PlannedImage


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="TARGET…", shell_complete=names("definitions", "recipes"))
@repeated("--model", "models", metavar="M", kinds="models", help="Also pair this model with the image. Repeatable.")
@repeated("--mod", "mods", metavar="X", kinds="mods", help="Also build this mod into the image. Repeatable.")
@update_option
@options.platform_option
@options.template_option
@click.option("--locked", is_flag=True, help="Use only the pins in images.lock; fail if a required pin is missing.")
@click.option("--force", is_flag=True, help="Build even if nothing has changed.")
@without("--no-promote", "promote", "Do not move `latest`.")
@click.option("--promote-anyway", is_flag=True, help="Move `latest` and models even if evidence failed or is missing.")
@click.option("--builder", metavar="NAME", help="Build with this `docker buildx` instance, then load the image.")
@click.option("--push", is_flag=True, help="Also push the image to the registry in builder.yaml.")
@click.option("--ignore-disk", is_flag=True, help="Build even if the disk will probably fill up.")
@without("--no-prove", "prove", "Do not prove the templates and parsers of the image.")
@repeated(
    "--without-check",
    "without_checks",
    metavar="NAME",
    help="Skip this check. A failed build prints the name of its check. Repeatable; requires --note.",
)
@click.option("--note", default="", metavar="WHY", help="Record this reason for --promote-anyway or --without-check.")
@click.option("--dry-run", is_flag=True, help="Print the plan, and change nothing.")
@click.option(
    "--write",
    "folder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="With --dry-run: write the build directory to FOLDER, which must be new or empty.",
)
@json_option
@verbosity_and_context
def build(
    context: Context,
    /,
    promote_anyway: bool,
    without_checks: tuple[str, ...],
    note: str,
    dry_run: bool,
    folder: Path | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Build a numbered image from a recipe or a definition.

    TARGET is a recipe (recipes/NAME.yaml, or its name), a model that has a recipe, or an image definition. Several
    targets share the steps that they have in common. Nothing is built if an existing number already has the same
    inputs.

    The build proves the image with `builder prove` if an earlier number was proven for the recipe's model, or if a
    proof is required. A change that cannot affect templates or parsers needs no proof. If the proof fails, the image
    keeps its number, but `latest` and the model do not move. If the proof finds a change, the build reports the change,
    and `latest` and the model move.

    An image whose check fails gets no number. If the check is wrong on this machine, --without-check NAME skips the
    check. The number records the skipped check; `list` and `show` display the check with the note.

    With --push and --builder, the image travels through the registry. Only missing layers are transferred.

    \b
    Ends with
      0  if every image is built
      6  if a build, a check or a proof failed
    """
    note = note.strip()
    if bool(note) != bool(promote_anyway or without_checks):
        raise click.UsageError("--note is allowed only with --promote-anyway or --without-check, and both require it")
    if promote_anyway and not chosen["promote"]:
        raise click.UsageError("--promote-anyway and --no-promote cannot be combined")
    if folder and not dry_run:
        raise click.UsageError("--write is allowed only with --dry-run; a build always writes to builds/")
    if folder and len(chosen["targets"]) > 1:
        raise click.UsageError("--write takes only one TARGET, because FOLDER holds one build directory")
    reasons = dict.fromkeys(without_checks, note)
    request = BuildRequest(**chosen, promote_anyway=note if promote_anyway else "", without_checks=reasons)
    if dry_run:
        _preview(context, request, folder, as_json=as_json)
        return
    results: list[BuildOutcome | commands.transfers.PushedImage] = []
    try:
        with context.working() as workspace:
            # Finished results are printed even if a later image fails.
            results.extend(commands.build.build_targets(workspace, request))
    except KeyboardInterrupt:
        if results:
            raise KeyboardInterrupt("the results above are finished; run the command again for the rest") from None
        raise
    finally:
        _print_results(results, as_json=as_json)


def _preview(context: Context, request: BuildRequest, folder: Path | None, *, as_json: bool) -> None:
    planned = commands.build.preview_build(context.workspace(), request)
    if folder:
        commands.build.write_directory(context.project, planned[0][0], folder)
    if as_json:
        print_json(document(planned=planned, written=folder))
        return
    for image, outlook in planned:
        print_plan(image, outlook, request.force)
    if folder:
        print_result(f"the build directory is in {folder}: read `{folder / 'Dockerfile'}` first")


def _print_results(results: Sequence[BuildOutcome | commands.transfers.PushedImage], *, as_json: bool) -> None:
    if as_json and results:
        print_json(document(results))
    for result in () if as_json else results:
        if isinstance(result, Built):
            _print_built(result)
        elif isinstance(result, BuildOutcome):
            _print_existing(result)
        else:
            from builder.cli.transfers_cli import print_pushed

            print_pushed(result)


def _print_existing(result: BuildOutcome) -> None:
    image, current = result.image, result.current
    repository, _, number = image.rpartition(":")
    print_result(
        f"already built as {image}" + (", which is marked bad; to build it again: --force" if result.bad else "")
    )
    is_recommended = not (result.failed_models or result.bad)
    if not current:
        go = f"; to use this one: `builder promote {image}`" if is_recommended else ""
        print_result(f"no image is current{go}")
    elif current != image:
        go = f"; to use this one: `builder rollback {repository} --to {number}`" if is_recommended else ""
        print_result(f"the current image is {current}{go}")
    for each in result.models:
        model, word = each.model, words.shell_word(each.model)
        if each.state == "paired":
            print_result(f"{model} is now paired with {image}")
        elif each.state == "unpaired":
            go = f"builder pair {word} {image} --force"
            print_result(f"{model} was not paired with this image; to pair the model anyway: `{go}`")
        else:
            is_here = str(each.image).rpartition(":")[0] == repository
            go = f"builder rollback {word} --to {number}" if is_here else f"builder pair {word} {image}"
            print_result(f"{model} stays paired with {each.image}" + ("" if result.bad else f"; to move it: `{go}`"))
    for waiting in result.waiting:
        _print_held(waiting, image)


def _print_held(waiting: HeldPointer, image: str) -> None:
    """Prints a pointer that a build did not move, what is missing, and the command that moves the pointer later."""
    is_model = waiting.kind == "model"
    name = waiting.what if is_model else f"{waiting.what}:latest"
    stays = f"stays at {waiting.stays}" if waiting.stays else "points to no image yet"
    moves = f"builder pair {words.shell_word(waiting.what)} {image}" if is_model else f"builder promote {image}"
    then = f": {image} did not pass" if waiting.failed else f"; once its evidence exists: `{moves}`"
    print_result(f"  {name} {stays}{then}")
    for missing in waiting.missing:
        print_result(f"    {missing.text}; `{missing.command}`", hanging=6)


def print_plan(image: PlannedImage, outlook: BuildOutlook, force: bool) -> None:
    """Prints the steps of a build and its expected cost."""
    plan, comparison = image.plan, image.comparison
    rows = []
    for number, step in enumerate(plan.steps):
        taken = (f"{key} {words.short_digest(value)}" for key, value in step.takes.items())
        takes = f"{len(step.takes)} locked packages" if step.name.endswith("packages") else ", ".join(taken)
        rows.append(("built" if number < image.kept_steps else "to build", step.name, takes))
    output.print_table(("", "STEP", "TAKES"), rows)
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


def _print_built(built: Built) -> None:
    layers = f"{built.new_layers} of {built.layers} layers new" if built.new_layers < built.layers else "all layers new"
    cost = f"{words.size_text(built.size)}, {layers}, {built.cached_steps} of {built.steps} steps cached"
    print_result(styled(f"built {built.image}", bold=True) + f" in {words.duration_text(built.seconds)}: {cost}")
    for each in built.models:
        print_result(f"  paired with {each.model}" + (f", in place of {each.taken_from}" if each.taken_from else ""))
    for waiting in built.waiting:
        _print_held(waiting, built.image)
    for name, reason in built.unchecked.items():
        print_result(f"  not checked: {name}: {reason}", hanging=4)
    for memory in built.compiled:
        jobs = words.counted(memory.jobs, "job")
        a_job = memory.mib / memory.jobs / 1024
        used = f"{memory.mib / 1024:.1f} GiB: {a_job:.1f} GiB a job"
        print_result(f"  {memory.source} was compiled by {jobs}, which used {used}")
    for proof in built.proofs:
        from builder.cli import measure_cli

        if proof.evidence.verdict == "pass":
            print_result(f"  proven for {proof.evidence.subject.model}{measure_cli.summary(proof.evidence)}")
        else:
            measure_cli.print_proof(proof)
        if proof.evidence.verdict == "changed" and proof.reference:
            back = f"to go back: `builder rollback {words.shell_word(proof.evidence.subject.model)}`"
            print_result(f"  `builder diff {proof.reference} {built.image}` shows what changed; {back}")
    for change in built.changes:
        print_result(f"  {change}")
    if output.level() != "quiet":
        print_note(f"  log: {built.log}")


_COMMON = "image current models waiting bad unchecked"
_MEASURES = "seconds size layers new_layers steps cached_steps log"


def document(
    results: Sequence[BuildOutcome | commands.transfers.PushedImage] = (),
    planned: Iterable[tuple[PlannedImage, BuildOutlook]] = (),
    written: Path | None = None,
) -> dict[str, Any]:
    """The results of a build. With ``--dry-run``, the planned images, and the folder of the written files."""
    images = [each for each in results if isinstance(each, BuildOutcome)]
    content: dict[str, Any] = data(
        {
            "images": [_outcome(each) for each in images],
            "pushed": [each for each in results if each not in images],
            "planned": [_planned(image, outlook) for image, outlook in planned],
            "written": written,
        }
    )
    return content


def _outcome(result: BuildOutcome) -> dict[str, Any]:
    if not isinstance(result, Built):
        nothing: dict[str, Any] = {"changes": [], "compiled": [], "proofs": [], **dict.fromkeys(_MEASURES.split())}
        return {"outcome": "existing", **data(result, _COMMON), **nothing}
    measures = _MEASURES.replace("seconds", "seconds~")
    lists = "compiled(source jobs mib) proofs(model=evidence.subject.model verdict=evidence.verdict file)"
    return {"outcome": "built", **data(result, f"{_COMMON} changes {measures} {lists}")}


def _planned(image: PlannedImage, outlook: BuildOutlook) -> dict[str, Any]:
    steps = enumerate(image.plan.steps)
    return {
        **data(image.plan, "repository platform=definition.platform input_hash"),
        **data(image.comparison, "existing reasons"),
        "warnings": image.plan.warnings,
        "steps": [
            {"name": step.name, "kept": number < image.kept_steps, "takes": step.takes} for number, step in steps
        ],
        **data(
            outlook, "jobs(source jobs reason) seconds(amount known_from=origin) bytes=disk(amount known_from=origin)"
        ),
        "free_bytes": outlook.free,
    }


@click.command()
@click.argument("image", metavar="IMAGE:N", shell_complete=names("numbered", "definitions"))
@options.set_option("Set the number of compile jobs: the only KEY is build_jobs.")
@verbosity_and_context
def rebuild(context: Context, image: str, settings: dict[str, str]) -> int:
    """Rebuild a number from its build directory.

    If the content is the same, a number that is missing from the engine gets its tag back. If the content differs, the
    command keeps the new image as IMAGE:N-rebuilt, lists the layers that differ, and ends with 1.
    """
    with context.working() as workspace:
        result = commands.rebuild.rebuild_image(workspace, image, settings)
    outcome = f"different content: {result.kept}" if result.kept else "the same content"
    again = ", tagged again" if result.same and result.missing else ""
    print_result(f"{result.image} built again in {words.duration_text(result.seconds)}: {outcome}{again}")
    if result.same:
        return 0
    print_result(f"  recorded  {result.recorded}")
    print_result(f"  built     {result.fingerprint}")
    if result.layers:
        print_result(f"  layers that differ: {', '.join(result.layers)}")
    if not result.missing:
        print_result(f"  `diffoci diff docker://{result.image} docker://{result.kept}` compares their files")
    print_result(
        f"  `builder adopt {result.kept}` gives the new image a number; `docker image rm {result.kept}` removes it"
    )
    print_result(f"  log: {result.log}")
    return 1


# The upgrade command.

_UPGRADE = (
    "model=upgrade.model result=upgrade.result before=upgrade.before? candidate=upgrade.candidate? "
    "changes why=upgrade.why machine served?"
)
_SHOWN_CHANGES, _SHOWN_REASONS = 4, 3


@click.command()
@click.argument("what", metavar="MODEL|RECIPE", shell_complete=names("models", "recipes"))
@update_option
@click.option("--allow-older", "older", is_flag=True, help="Build even if packages or sources move to older versions.")
@click.option(
    "--machine-differs", is_flag=True, help="Continue even if the machine has changed since the current image worked."
)
@click.option("--abort", is_flag=True, help="Cancel an interrupted upgrade, and serve the model as before.")
@click.option("--dry-run", is_flag=True, help="Print the plan of the candidate, but change nothing.")
@json_option
@verbosity_and_context
def upgrade(context: Context, /, what: str, abort: bool, dry_run: bool, as_json: bool, **chosen: Any) -> int:
    """Move a model to newer upstream versions, if they are as good.

    The command resolves all sources again, or only the sources named by --update. It then builds a candidate and proves
    it. It serves the candidate under a different name and port, and runs the required probes and benchmarks. If there
    is not enough memory for two servers, the candidate replaces the model's server during the tests.

    If the candidate passes, pins, pairing and `latest` move together, and the server switches to the new image.
    Otherwise nothing moves, and the candidate stays with its evidence.

    If a package or source would move to an older version, nothing is built without --allow-older. For example, the
    package index may lag behind the pins. If the kernel, the driver or the firmware has changed since the current image
    worked, no candidate is judged without --machine-differs.

    The same command continues an interrupted upgrade. After kill -9, the candidate may still run. `builder run`,
    `builder restart` and this command stop the candidate, and serve the model as before.

    \b
    Ends with
      0  if the model moved to the new image, or nothing is newer
      1  if the candidate was rejected
    """
    if dry_run:
        if abort or as_json:
            raise click.UsageError(f"--dry-run cannot be combined with {'--abort' if abort else '--json'}")
        for image, outlook in commands.upgrade.preview_upgrade(context.workspace(), what, chosen["update"]):
            print_plan(image, outlook, force=False)
        return 0
    with context.working() as workspace:
        if abort:
            result = commands.upgrade.abort_upgrade(workspace, what)
        else:
            result = commands.upgrade.upgrade_image(workspace, what, **chosen)
    if as_json:
        from builder.cli.diff_cli import RUNS

        print_json({**data(result, _UPGRADE), "evidence": data(result.runs, RUNS)})
    else:
        _print_upgrade(result)
    return int(result.upgrade.result == "rejected")


def _print_upgrade(result: commands.upgrade.UpgradeReport) -> None:
    from builder.cli import evidence_cli

    upgrade = result.upgrade
    print_result(f"{styled(upgrade.model, bold=True)}: {_sentence(result)}")
    _print_lines("changed", result.changes, _SHOWN_CHANGES)
    for line in evidence_cli.side_by_side(result.runs, (upgrade.before, upgrade.candidate)):
        print_result(f"  {line}")
    _print_lines("because", upgrade.why, _SHOWN_REASONS)
    _print_lines("the machine has changed", result.machine, _SHOWN_REASONS)
    print_result(f"  served from {result.served}" if result.served else "  nothing is being served, as before")


def _sentence(result: commands.upgrade.UpgradeReport) -> str:
    upgrade = result.upgrade
    before = upgrade.before or "nothing"
    if upgrade.result == "promoted":
        return f"{before} → {upgrade.candidate}"
    if upgrade.result == "unchanged":
        return f"nothing is newer: a build from the latest sources would make {before} again"
    name = f"; {upgrade.candidate} stays, unpaired" if upgrade.candidate else ""
    why = "the upgrade was cancelled" if upgrade.result == "aborted" else "the candidate was rejected"
    return f"{f'stays on {upgrade.before}' if upgrade.before else 'still has no image'}: {why}{name}"


def _print_lines(label: str, lines: Sequence[str], most: int) -> None:
    for line in lines[:most]:
        print_result(f"  {label}: {line}", hanging=4)
    if len(lines) > most:
        print_result(f"  {label}: and {len(lines) - most} more")

"""The command line of builder upgrade."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from builder import commands
from builder.cli.options import Context, json_option, names, update_option, verbosity_and_context
from builder.cli.output import data, print_json, print_result, styled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.lab.upgrade_journal import InterruptedUpgrade


_KEYS = (
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
def upgrade(context: Context, /, what: str, abort: bool, dry_run: bool, as_json: bool, **options: Any) -> int:
    """Move a model to newer upstream versions, if they are as good.

    The command resolves all sources again, or only the sources named by --update. It then builds a candidate and proves
    it. It serves the candidate under a different name and port, and runs the required probes and benchmarks. If memory
    does not suffice for two servers, the candidate replaces the model's server during the tests.

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
    from builder.cli.build_cli import print_plan

    if dry_run:
        if abort or as_json:
            raise click.UsageError(f"--dry-run cannot be combined with {'--abort' if abort else '--json'}")
        for image, outlook in commands.upgrade.preview_upgrade(context.workspace(), what, options["update"]):
            print_plan(image, outlook, force=False)
        return 0
    with context.working() as workspace:
        if abort:
            result = commands.upgrade.abort_upgrade(workspace, what)
        else:
            result = commands.upgrade.upgrade_image(workspace, what, **options)
    if as_json:
        from builder.cli.diff_cli import runs_data

        print_json({**data(result, _KEYS), "evidence": [runs_data(pair) for pair in result.runs]})
    else:
        _print(result)
    return int(result.upgrade.result == "rejected")


def _print(result: commands.upgrade.UpgradeReport) -> None:
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
        return f"nothing is newer: all sources were resolved again, and a build would make {before} again"
    name = f"; {upgrade.candidate} stays, unpaired" if upgrade.candidate else ""
    why = "the upgrade was cancelled" if upgrade.result == "aborted" else "the candidate was rejected"
    return f"{f'stays on {upgrade.before}' if upgrade.before else 'still has no image'}: {why}{name}"


def _print_lines(label: str, lines: Sequence[str], most: int) -> None:
    for line in lines[:most]:
        print_result(f"  {label}: {line}", hanging=4)
    if len(lines) > most:
        print_result(f"  {label}: and {len(lines) - most} more")


def document(interrupted: InterruptedUpgrade) -> dict[str, Any]:
    """An interrupted upgrade as JSON: its stage, and the command that continues it."""
    keys = (
        "subject=model stage=upgrade.stage? before=upgrade.before? candidate=upgrade.candidate? "
        "started=upgrade.started? problem?"
    )
    return {**data(interrupted, keys), "goes_on_with": f"builder upgrade {interrupted.text}"}

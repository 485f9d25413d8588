"""``builder prune``."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from builder import humanize
from builder.cli import progress, table
from builder.cli.context import Context, json_option, pass_context
from builder.cli.options import parse_age
from builder.cli.output import confirm, print_json, print_line, print_result

if TYPE_CHECKING:
    from builder.commands.prune import Pruned, PrunePlan

KEEP = 3


@click.command()
@click.option("--keep", type=click.IntRange(min=0), default=KEEP, show_default=True, metavar="N",
              help="Keep the N newest numbers of each image.")  # fmt: skip
@click.option(
    "--older-than", callback=parse_age, metavar="AGE", help="Only images that were built longer ago: 30d, 12h, 2w."
)
@click.option("--yes", is_flag=True, help="Remove without asking.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@json_option
@pass_context
def prune(context: Context, keep: int, older_than: timedelta | None, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Remove images that are no longer needed, and what builds left.

    An image that is current, pinned, paired with a model, used by a container, among the newest, or the base of an
    image that stays is never removed; nor is anything that this project did not build. What an image compiled on this
    machine while it served is removed with it, and so are files that were fetched for mods and that none names any
    more, and checkpoints that were made again since and that no pairing names. A removed number stays on record and
    can be rebuilt. The command asks before it removes anything; where it cannot ask, it only shows what it would
    remove, unless --yes is given.
    """
    from builder.commands import prune as command

    with progress.showing("looking at what may go"):
        pruning = command.plan(context.workspace(), keep, older_than or timedelta(0), datetime.now(UTC))
    if not as_json:
        _print_plan(pruning)
    result = None
    if (
        not pruning.is_empty
        and not dry_run
        and (yes or (not as_json and sys.stdin.isatty() and confirm("remove these?")))
    ):
        with progress.showing("removing"):
            result = command.run(context.workspace(), pruning)
    if as_json:
        _print_document(pruning, result)
    elif result:
        _print_removed(result)
    elif not pruning.is_empty:
        print_result("nothing was removed" + ("" if dry_run else "; --yes removes without asking"))


def _print_plan(pruning: PrunePlan) -> None:
    rows = [(str(kept.name), ", ".join(kept.reasons)) for kept in pruning.kept]
    if rows:
        table.print_table(("STAYS", "BECAUSE"), rows)
    if pruning.is_empty:
        print_result("nothing to remove")
        return
    print_line()
    going = [(str(image.name), humanize.ago(image.built), humanize.size(image.frees)) for image in pruning.going]
    if going:
        table.print_table(("GOES", "BUILT", "FREES"), going)
    for image in pruning.going:
        if image.holder:
            print_result(f"{image.name} is only recorded as pruned: {image.holder} has it, too")
    if pruning.nameless:
        print_result(f"and {humanize.counted(len(pruning.nameless), 'image')} without a name that this project left")
    for cache in pruning.compiled:
        print_result(f"and what {cache.name} compiled when it served: {humanize.size(cache.size)} in {cache.folder}")
    _print_caches(pruning)
    layers = "unpacked layers, each counted once; their packed copies come on top"
    print_result(f"frees {humanize.size(pruning.frees)}" + (f": {layers}" if pruning.going or pruning.nameless else ""))


def _print_caches(pruning: PrunePlan) -> None:
    for checkpoint in pruning.checkpoints:
        print_result(f"and {checkpoint.title}: {humanize.size(checkpoint.size)}")
    if pruning.wheels:
        print_result(f"and what was read of wheels that are pinned no longer: {humanize.size(pruning.wheels_size)}")
    if pruning.downloads:
        print_result(f"and downloads that no mod names any more: {humanize.size(pruning.downloads_size)}")


def _print_removed(result: Pruned) -> None:
    for line in result.refused:
        print_result(line)
    gone = f": {', '.join(map(str, result.gone))}" if result.gone else ""
    print_result(f"removed {humanize.counted(len(result.gone), 'image')}{gone}")
    if result.compiled:
        print_result(f"removed what was compiled by {', '.join(map(str, result.compiled))}")
    if result.cache:
        print_result(f"BuildKit let go of {humanize.size(result.cache)}: its own copies, packed and unpacked")


def _print_document(pruning: PrunePlan, result: Pruned | None) -> None:
    content: dict[str, Any] = {
        "going": [
            {"image": str(image.name), "built": image.built, "frees": image.frees, "holder": image.holder}
            for image in pruning.going
        ],
        "kept": [{"image": str(image.name), "reasons": list(image.reasons)} for image in pruning.kept],
        "nameless": list(pruning.nameless),
        "compiled": [
            {"image": str(cache.name), "folder": str(cache.folder), "frees": cache.size} for cache in pruning.compiled
        ],
        "checkpoints": [
            {"checkpoint": each.name, "revision": each.revision or None, "frees": each.size}
            for each in pruning.checkpoints
        ],
        "wheels": pruning.wheels_size,
        "downloads": pruning.downloads_size,
        "frees": pruning.frees,
        "removed": None,
    }
    if result:
        content["removed"] = {
            "images": [str(name) for name in result.gone],
            "compiled": [str(name) for name in result.compiled],
            "refused": list(result.refused),
            "build_cache": result.cache,
        }
    print_json(content)

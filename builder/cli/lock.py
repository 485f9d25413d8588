"""``builder lock``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from builder.cli.completers import names
from builder.cli.context import Context, json_option, pass_context
from builder.cli.options import parse_update, platform_option, update_option
from builder.cli.output import print_json, print_result

if TYPE_CHECKING:
    from builder.commands.lock_update import MovedPin
    from builder.pinning.chain import Update

STALE = 4
SHOWN_COMMITS = 20


@click.command()
@click.argument("definitions", nargs=-1, metavar="[DEFINITION]…", shell_complete=names("definitions"))
@update_option
@platform_option
@click.option("--check", is_flag=True, help="Resolve nothing; end with 4 if images.lock lacks a pin that is needed.")
@click.option("--recover", is_flag=True, help="Rebuild a lost images.lock from builds/ and the engine.")
@click.option(
    "--renumber", is_flag=True, help="After a merge: keep both images where two branches used the same number."
)
@json_option
@pass_context
def lock(
    context: Context,
    definitions: tuple[str, ...],
    update: tuple[str, ...],
    platform: str | None,
    check: bool,
    recover: bool,
    renumber: bool,
    as_json: bool,
) -> int:
    """Resolve or move pins without building.

    Without --update only pins that are missing or stale are resolved: a newer upstream moves nothing. What can be
    resolved is written; the rest is listed at the end, and the exit code is 6. A base image that others build is pulled
    to read what it brings (vLLM, FlashInfer, packages); one that is not pinned yet, only if its definition is named.
    """
    if recover or renumber:
        if (recover and renumber) or definitions or update or check or platform:
            raise click.UsageError("--recover and --renumber stand alone")
        from builder.cli import lock_repair

        return (lock_repair.recover if recover else lock_repair.renumber)(context, as_json)
    if check:
        return _check(context, definitions, platform, as_json)
    return _resolve(context, definitions, parse_update(update), platform, as_json)


def _check(context: Context, definitions: tuple[str, ...], platform: str | None, as_json: bool) -> int:
    from builder.commands import lock_update

    missing = lock_update.check(context.workspace(), definitions, platform)
    if as_json:
        print_json({"missing": list(missing)})
    else:
        for line in missing or ("images.lock covers all that is asked",):
            print_result(f"not pinned: {line}" if missing else line)
    return STALE if missing else 0


def _resolve(
    context: Context, definitions: tuple[str, ...], update: Update, platform: str | None, as_json: bool
) -> int:
    from builder.commands import lock_update

    result = lock_update.run(context.workspace(), definitions, update, platform)
    if as_json:
        print_json({"moved": [_document(moved) for moved in result.moved]})
    else:
        for moved in result.moved:
            _print(moved)
        if not (result.moved or result.faults):
            print_result("nothing moved")
    if result.error:
        raise result.error
    return 0


def _document(moved: MovedPin) -> dict[str, Any]:
    packages = [{"name": p.name, "before": p.before, "after": p.after} for p in moved.packages]
    older = [{"name": p.name, "before": p.before, "after": p.after, "why": p.why or None} for p in moved.older]
    return {
        **({"packages": packages} if packages else {}),
        **({"older": older} if older else {}),
        "definition": moved.definition,
        "platform": moved.platform,
        "name": moved.name,
        "before": moved.before,
        "after": moved.after,
    }


def _print(moved: MovedPin) -> None:
    print_result(f"{moved.definition} {moved.name}: {moved.before or 'not pinned'} → {moved.after or 'gone'}")
    if moved.packages:
        from builder.cli import diff_text

        for line in diff_text.packages("Python packages in it", moved.packages, full=False):
            print_result(f"  {line}" if line else line)
    for older in moved.older:
        print_result(f"  {older}", hanging=4)
    between = moved.between
    if between is None:
        return
    dropped = f", {between.dropped} left behind" if between.dropped else ""
    print_result(f"  {between.total} commits upstream in between{dropped}")
    for commit in between.commits[:SHOWN_COMMITS]:
        print_result(f"    {commit.commit[:12]} {commit.date[:10]} {commit.title}")
    if between.total > SHOWN_COMMITS:
        print_result(f"    … and {between.total - SHOWN_COMMITS} more")

"""``builder init``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import humanize
from builder.cli import change_colours, diagnosis_text, table
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import confirm, print_json, print_line, print_note, print_result
from builder.cli.terminal_text import styled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.commands.init import InitResult
    from builder.commands.init_update import InitUpdate
    from builder.diagnosis import Diagnosis
    from builder.shipped.planning import PlannedFile
    from builder.shipped.selection import Contents


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path), metavar="[FOLDER]")
@click.option("--spark", "contents", flag_value="spark", help="What a DGX Spark serves with.")
@click.option("--cpu", "contents", flag_value="cpu", help="What needs no GPU.")
@click.option("--all", "contents", flag_value="all", help="All definitions, mods and recipes.")
@click.option("--minimal", "contents", flag_value="minimal", help="Only what definitions of your own are written with.")
@click.option("--git", is_flag=True, help="Begin a git repository, where the folder is in none.")
@click.option("--update", is_flag=True, help="Bring newer files of this release into the project that is there.")
@click.option("--yes", is_flag=True, help="With --update: write without asking, but over nothing that was edited.")
@click.option("--force", is_flag=True, help="With --update --yes: write over edited files, too.")
@json_option
@pass_context
def init(
    context: Context,
    folder: Path | None,
    contents: Contents | None,
    git: bool,
    update: bool,
    yes: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Make a project: definitions, mods, recipes and pins.

    It is made in FOLDER, or here. Without --spark, --cpu, --all or --minimal it gets what suits this machine.
    Files that are there already are never replaced. Then it tells what it sees: chip, memory, engine, a checkout of
    spark-vllm-docker, images that could get a number.

    With --update a newer release brings its files into the project: the differences are shown first, and a file that
    was edited here stays unless you say otherwise. Pins do not move: `builder lock` does that.
    """
    if update:
        if folder is not None or git:
            raise click.UsageError("--update is for the project that is here: no FOLDER and no --git go with it")
        return _update(context, contents, yes=yes, force=force, as_json=as_json)
    if yes or force:
        raise click.UsageError("--yes and --force go with --update")
    from builder.commands import init as command

    request = command.InitRequest(folder or context.start, contents, git)
    result = command.run(request, os.environ)
    if as_json:
        findings = list(command.findings(result.project, os.environ))
        print_json(_document(result, findings))
        return 0
    _print_made(result)
    for finding in command.findings(result.project, os.environ):
        diagnosis_text.print_finding(finding)
    _print_next(result)
    return 0


def _print_made(result: InitResult) -> None:
    selected = result.selection
    print_result(styled(f"{result.project.root} is a project", bold=True))
    for kind, names in _parts(result).items():
        if names:
            print_result(f"  {kind}: {', '.join(names)}", hanging=4)
    if result.reason:
        print_result(f"  {result.reason}: `--{selected.contents}`; `builder init --update --all` brings the rest")
    for file in result.kept:
        print_result(f"  {file} was there, and is as it was")
    if result.git:
        print_result("  a git repository with nothing committed yet")


def _parts(result: InitResult) -> dict[str, Sequence[str]]:
    from pathlib import PurePath

    selected = result.selection
    recipes = [PurePath(file).stem for file in selected.recipes]
    return {"definitions": selected.definitions, "mods": selected.mods, "recipes": recipes}


def _print_next(result: InitResult) -> None:
    go = "" if result.project.root == Path.cwd() else f"`cd {result.project.root}`, then "
    if result.first:
        print_result(f"next: {go}`builder up {Path(result.first).stem}` makes an image and serves it;")
        print_result("  `builder recipes list` shows every recipe")
    else:
        print_result(f"next: {go}write dockerfiles/NAME/image.yaml, or `builder adopt IMAGE`")


def _update(context: Context, contents: Contents | None, *, yes: bool, force: bool, as_json: bool) -> int:
    from builder.commands import init_update

    update = init_update.plan(context.project, contents)
    if not as_json:
        _print_update(update)
    asks = not yes and not as_json and sys.stdin.isatty()
    is_news = bool(update.writable or update.pins.pins)
    is_wanted = yes or not is_news or (asks and confirm(f"write {_counted(update)}?"))
    replace = {
        each.path
        for each in update.edited
        if (yes and force) or (asks and confirm(f"{each.path} was edited here: replace it?"))
    }
    written: tuple[str, ...] = ()
    if is_wanted and (is_news or replace or yes):
        written = init_update.run(update, replace, os.environ)
    waiting = [each.path for each in (*update.writable, *update.edited) if each.path not in written]
    waiting += [] if written else list(update.pins.pins)
    if as_json:
        print_json(_update_document(update, written))
    elif written:
        print_result(f"{humanize.counted(len(written), 'file')} written; this is {update.now}")
    elif not waiting:
        print_result(f"all is as in {update.now}")
    else:
        print_result("nothing was written; --yes writes what was not edited, --yes --force all of it")
    return 1 if waiting and not written and not as_json else 0


def _print_update(update: InitUpdate) -> None:
    if update.before and update.before != update.now:
        print_result(f"the files here came with {update.before}; this is {update.now}")
    rows: list[tuple[str, str]] = [
        (each.state, each.path) for each in update.files if each.state not in {"same", "kept"}
    ]
    rows += [("pins", f"images.lock: {name}") for name in update.pins.pins]
    if rows:
        table.print_table(("", "FILE"), rows)
    for each in (*update.writable, *update.edited):
        if each.before is not None:
            _print_difference(each)
    for each in update.edited:
        edited = f"note: {each.path} was edited here, or did not come with this program"
        print_note(f"{edited}: only a yes of yours, or --yes --force, writes over it")


def _print_difference(planned: PlannedFile) -> None:
    for line in planned.difference():
        print_line(change_colours.line(line))


def _counted(update: InitUpdate) -> str:
    return humanize.counted(len(update.writable) + bool(update.pins.pins), "file")


def _document(result: InitResult, findings: Sequence[Diagnosis]) -> dict[str, Any]:
    return {
        "project": str(result.project.root),
        "contents": result.selection.contents,
        "reason": result.reason or None,
        **{kind: list(names) for kind, names in _parts(result).items()},
        "written": sorted(result.written),
        "kept": list(result.kept),
        "git": result.git,
        "findings": [diagnosis_text.document(finding) for finding in findings],
    }


def _update_document(update: InitUpdate, written: Sequence[str]) -> dict[str, Any]:
    return {
        "from": update.before or None,
        "release": update.now,
        "contents": update.contents,
        "files": [{"path": each.path, "state": each.state} for each in update.files if each.state != "same"],
        "pins": list(update.pins.pins),
        "written": sorted(written),
    }

"""The command line of builder init and builder migrate."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import commands
from builder.base import words
from builder.cli import output
from builder.cli.options import Context, json_and_context, without
from builder.cli.output import agreed, data, print_error, print_json, print_line, print_note, print_result, styled

if TYPE_CHECKING:
    from builder.commands.init import InitResult, InitUpdate, Migration, MigrationResult
    from builder.moving.copies import PlannedCopy
    from builder.moving.shipped import Contents


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path), metavar="[FOLDER]")
@click.option("--spark", "contents", flag_value="spark", help="Add definitions, mods and recipes for a DGX Spark.")
@click.option("--cpu", "contents", flag_value="cpu", help="Add definitions, mods and recipes that work without a GPU.")
@click.option("--all", "contents", flag_value="all", help="Add all definitions, mods and recipes.")
@click.option("--minimal", "contents", flag_value="minimal", help="Add only what your own definitions need.")
@click.option("--git", is_flag=True, help="Create a git repository, unless the folder already belongs to one.")
@click.option("--update", is_flag=True, help="Update the files of an existing project to this release.")
@click.option("--yes", is_flag=True, help="With --update: write without asking.")
@click.option("--force", is_flag=True, help="With --update: also overwrite edited files.")
@json_and_context
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

    The command makes the project in FOLDER, or in the current folder. Without --spark, --cpu, --all or --minimal, the
    project gets the files that suit this machine. Existing files are never replaced. The command then lists the chip,
    memory, engine, a checkout of spark-vllm-docker, and images that could get a number.

    With --update, the project gets the files of this release. The command shows the differences first. Edited files
    stay unchanged unless you add --force. Pins do not move; `builder lock` moves them.
    """
    if update:
        if folder is not None or git:
            raise click.UsageError("--update cannot be combined with FOLDER or --git: it updates the current project")
        return _update(context, contents, yes=yes, force=force, as_json=as_json)
    if yes or force:
        raise click.UsageError("--yes and --force require --update")
    result = commands.init.init_project(folder or Path(context.start), contents, os.environ, git=git)
    findings = commands.init.machine_findings(result.project, os.environ)
    if as_json:
        made = data(result, "project=project.root contents=selection.contents reason? kept git")
        told = data(findings, "subject verdict said=message remedy")
        print_json({**made, **_parts(result), "written": sorted(result.written), "findings": told})
        return 0
    _print_made(result)
    for finding in findings:
        output.print_finding(finding)
    go = "" if result.project.root == Path.cwd() else f"`cd {words.shell_word(result.project.root)}`, then "
    if result.first:
        print_result(f"next: {go}`builder up {Path(result.first).stem}` makes an image and serves it;")
        print_result("  `builder recipes list` shows every recipe")
    else:
        print_result(f"next: {go}write dockerfiles/NAME/image.yaml, or `builder adopt IMAGE`")
    return 0


def _print_made(result: InitResult) -> None:
    print_result(styled(f"{result.project.root} is a project", bold=True))
    for kind, names in _parts(result).items():
        if names:
            print_result(f"  {kind}: {', '.join(names)}", hanging=4)
    if result.reason:
        contents = result.selection.contents
        rest = "" if contents == "all" else ". To add the rest: `builder init --update --all`"
        print_result(f"  {result.reason} (as with `--{contents}`){rest}")
    for file in result.kept:
        print_result(f"  {file} already exists and was left unchanged")
    if result.git:
        print_result("  a git repository was created; to let builder merge images.lock in it:")
        print_result("  `git config merge.builder.driver 'builder lock --merge-driver %O %A %B'`")


def _parts(result: InitResult) -> dict[str, list[str]]:
    selected = result.selection
    recipes = [Path(file).stem for file in selected.recipes]
    return {"definitions": list(selected.definitions), "mods": list(selected.mods), "recipes": recipes}


def _update(context: Context, contents: Contents | None, *, yes: bool, force: bool, as_json: bool) -> int:
    update = commands.init.plan_update(context.project, contents)
    if not as_json:
        _print_update(update)
    changed = [*(each.path for each in update.writable), *update.pins.pins]
    changed += [each.path for each in update.edited] if force else []
    written: tuple[str, ...] = ()
    question = f"write {words.counted(len(changed), 'change')}?"
    if yes or (changed and agreed(question, yes=yes, as_json=as_json)):
        written = commands.init.update_project(update, os.environ, force=force)
    waiting = not written and (changed or update.edited)
    if as_json:
        files = data([each for each in update.files if each.state != "same"], "path state")
        result = {"files": files, "pins": list(update.pins.pins), "written": sorted(written)}
        print_json({**data(update, "from=before? release=now contents"), **result})
    elif written:
        print_result(f"{words.counted(len(written), 'file')} written; this is {update.now}")
    elif not waiting:
        is_same = all(each.state == "same" for each in update.files)
        others = "" if is_same else " that you did not edit or delete"
        print_result(f"every file{others} is the same as in {update.now}")
    else:
        unedited = "--yes writes the files that were not edited, --yes --force all files"
        print_result(f"nothing was written; {unedited if changed else '--yes --force overwrites the edited files'}")
    return 1 if waiting and not as_json else 0


def _print_update(update: InitUpdate) -> None:
    if update.before and update.before != update.now:
        print_result(f"the files here came with {update.before}; this is {update.now}")
    rows = [(str(each.state), each.path) for each in update.files if each.state not in {"same", "kept"}]
    rows += [("pins", f"images.lock: {name}") for name in update.pins.pins]
    if rows:
        output.print_table(("", "FILE"), rows)
    for each in (*update.writable, *update.edited):
        for line in each.difference() if each.before is not None else ():
            print_line(output.line(line))
    for each in update.edited:
        edited = f"note: {each.path} was edited here, or did not come with this program"
        print_note(f"{edited}; to overwrite it: --force")


_MOST_NAMED = 12


@click.command()
@click.argument("path", type=click.Path(path_type=Path), metavar="PATH")
@click.argument("recipes", nargs=-1, metavar="[RECIPE]…")
@click.option(
    "--env-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Read settings from FILE instead of .env in PATH.",
)
@click.option("--replace", is_flag=True, help="Replace recipes, mods and settings of the project that differ.")
@without("--no-adopt", "with_images", "Do not give numbers to existing images.")
@click.option("--yes", is_flag=True, help="Write without asking.")
@json_and_context
def migrate(context: Context, /, path: Path, recipes: tuple[str, ...], yes: bool, as_json: bool, **options: Any) -> int:
    """Take over a checkout of spark-vllm-docker.

    PATH is the folder of the checkout. The command copies its recipes and mods into the project, or only each RECIPE
    with its mods. The .env file becomes settings in builder.yaml. Images that the checkout's scripts made get numbers.
    The command changes neither the images nor PATH.

    The command first shows what it would do, and whether each recipe can be served. It asks before it writes. Project
    files that differ are kept. Only unedited files that came with builder are replaced by yours. Secrets in .env are
    never copied.
    """
    workspace = context.workspace()
    planned = commands.init.plan_migration(workspace, path, recipes, **options)
    if not as_json:
        _print_plan(planned)
    result = None
    if planned.changes_something and agreed("do this?", yes=yes, as_json=as_json):
        result = commands.init.migrate(workspace, planned)
    if as_json:
        print_json(_migration_json(planned, result))
    elif result is None:
        waits = "nothing was written; to write without asking: --yes"
        print_result(waits if planned.changes_something else "there is nothing to do")
    else:
        _print_result(result)
    return 1 if result and result.errors else 0


def _print_plan(planned: Migration) -> None:
    from builder.cli import diff_cli

    rows = list(_rows(planned))
    shown = [("" if before[0] == row[0] else row[0], *row[1:]) for before, row in pairwise([("",), *rows])]
    if rows:
        output.print_table(("", "CHECKOUT", "PROJECT"), shown)
    for part in planned.wanted:
        if part.state == "differs":
            print_result(styled(f"{part.kind}s/{part.name}: the present files → {planned.checkout.root}", bold=True))
            for line in diff_cli.of_files(part.changes, full=True):
                print_line(line)
    if planned.settings and planned.settings.changed:
        print_line()
        for line in planned.settings.difference():
            print_line(output.line(line))
        print_line()
    for note in planned.notes:
        print_note(f"note: {note}")


def _rows(planned: Migration) -> Iterator[tuple[str, str, str]]:
    for part in sorted(planned.parts, key=lambda part: (part.kind != "recipe", part.name)):
        text = _state(planned, part)
        if part.kind == "recipe" and (problems := planned.problems.get(part.name)):
            counted = words.counted(len(problems), "problem")
            text += f"; cannot be served, {counted}: line {problems[0].location.line}: {problems[0].message}"
        if part.kind == "mod" and part.name in planned.run_time:
            text += f"; {planned.run_time[part.name]}"
        yield part.kind, part.name, text
    for name, remedy in planned.missing.items():
        yield "mod", name, f"missing in the checkout and the project, but a recipe names it{remedy and f'; {remedy}'}"
    for image in planned.images:
        size = words.size_text(image.size)
        yield "image", image.tag, f"gets the next number of {image.repository}, as it is ({size})"
    for key, text in planned.settings.outcomes.items() if planned.settings else ():
        yield ".env", key, text


def _state(planned: Migration, part: PlannedCopy) -> str:
    if part.state == "new":
        return "new" if part.origin or planned.upstream is None else "new; your own, or changed by you"
    if part.state == "differs":
        return "replaces the present files" if planned.replace else "differs from the present files, which stay"
    others = {
        "shipped": "replaces the copy that came with builder, which nobody edited",
        "unrecorded": "already in the project; its origin will be recorded",
        "same": "already in the project",
    }
    return others.get(part.state) or f"left out: {part.reason}"


def _print_result(result: MigrationResult) -> None:
    for kind in ("mod", "recipe"):
        names = [part.name for part in result.written if part.kind == kind and part.state != "unrecorded"]
        if names:
            listed = f": {', '.join(names)}" if len(names) <= _MOST_NAMED else ""
            print_result(f"{words.counted(len(names), kind)} copied{listed}")
    if result.settings_written:
        print_result("builder.yaml was written; if it names nodes, test them: `builder nodes check`")
    for image in result.adopted:
        adopted = image.record.adopted
        print_result(f"{adopted.image if adopted else image.image} is now {image.image}")
    for what, error in result.errors:
        print_error(error, f"{what}:")
    if any(part.kind == "recipe" for part in result.written):
        print_result("`builder recipes check` checks the recipes; `builder run RECIPE` serves one")


def _migration_json(planned: Migration, result: MigrationResult | None) -> dict[str, Any]:
    settings = planned.settings
    return {
        "checkout": planned.checkout.root,
        "upstream": data(planned.upstream, "url commit"),
        "parts": [
            {
                **data(part, "kind name state reason? origin=origin.address"),
                "problems": list(map(str, planned.problems.get(part.name, ()) if part.kind == "recipe" else ())),
                "run_time": planned.run_time.get(part.name) if part.kind == "mod" else None,
            }
            for part in planned.parts
        ],
        "missing_mods": list(planned.missing),
        "images": data(planned.images, "image=tag repository"),
        "settings": [{"key": key, "here": text} for key, text in (settings.outcomes if settings else {}).items()],
        "difference": list(settings.difference()) if settings else [],
        "notes": planned.notes,
        "done": result is not None,
        "written": [f"{part.kind}s/{part.name}" for part in result.written] if result else [],
        "settings_written": bool(result and result.settings_written),
        "adopted": [image.image for image in result.adopted] if result else [],
        "errors": [{"what": what, "message": error.message} for what, error in result.errors] if result else [],
    }

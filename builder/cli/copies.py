"""``add`` and ``update`` of ``builder mods`` and ``builder recipes``: copies from other repositories."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from builder import humanize
from builder.cli.completers import names
from builder.cli.context import Context, pass_context
from builder.cli.output import confirm, print_line, print_message, print_note, print_result
from builder.cli.terminal_text import styled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from builder.copies.origin import Kind
    from builder.copies.planning import PlannedCopy
    from builder.project import Project

    # Makes copies, and returns notes on them.
    _Making = Callable[[Project, Sequence[PlannedCopy]], tuple[str, ...]]

# Files that are run, or say what is: mod.yaml names commands.
_SCRIPTS = (".sh", ".py", "mod.yaml")
ADDRESS = "GIT-URL[//PATH][@REF]"
yes_option = click.option("--yes", is_flag=True, help="Replace without asking, but nothing that would be lost.")
force_option = click.option(
    "--force", is_flag=True, help="With --yes: replace also what was edited here, or was never copied."
)
all_option = click.option("--all", "everything", is_flag=True, help="Copy all that are there.")
_ref = click.option("--ref", metavar="REF", help="The branch, tag or commit to move to, and to follow from now on.")


@click.command("add")
@click.argument("address", metavar=f"{ADDRESS}|NAME")
@click.option("--as", "name", metavar="NAME", help="The name that the mod gets here.")
@all_option
@yes_option
@force_option
@pass_context
def add_mods(context: Context, address: str, name: str | None, everything: bool, yes: bool, force: bool) -> int:
    """Copy a mod from another repository, with where it came from.

    The address is that of a git repository, then // and the mod's folder, then @ and a branch, tag or commit (else the
    default branch): https://github.com/OWNER/REPOSITORY//mods/NAME@main. The address of the folder's page on GitHub
    will do, too, and so will the NAME of a mod that builder or `mod_sources` in builder.yaml knows a place of. The
    scripts that a build would run are shown before anything is taken. Where the project has the mod already, the
    differences are shown before anything is replaced.
    """
    from builder.commands import mods_add

    planned = mods_add.plan(context.project, address, name, print_message, everything=everything)
    return make_copies(context, planned, mods_add.run, yes=yes, force=force)


@click.command("update")
@click.argument("mods", nargs=-1, metavar="[MOD]…", shell_complete=names("mods"))
@_ref
@yes_option
@force_option
@pass_context
def update_mods(context: Context, mods: tuple[str, ...], ref: str | None, yes: bool, force: bool) -> int:
    """Move copied mods to what their repositories have now.

    Without names all copies are looked up. The differences are shown before anything is replaced.
    """
    return _update(context, "mod", mods, ref, yes=yes, force=force)


def offer_mods(project: Project, names_lacking: Iterable[str]) -> tuple[str, ...]:
    """Asks for each mod that is known to be somewhere whether to fetch it, shows its scripts, and asks whether to take
    it; returns the names of those that were taken."""
    from builder.commands import mods_add

    taken = []
    for name, address in mods_add.known_addresses(project, names_lacking).items():
        if not confirm(f"the recipe names the mod {name}, which the project lacks: fetch it from {address}?"):
            continue
        planned = mods_add.plan(project, address, name, print_message, everything=False)
        print_scripts(planned)
        if confirm(f"take mods/{name}?"):
            _put_in_place(project, planned, mods_add.run)
            taken.append(name)
    return tuple(taken)


def print_scripts(planned: Sequence[PlannedCopy]) -> None:
    """Shows what a build would run of mods of other repositories, and names their other files with their sizes."""
    for each in planned:
        scripts = [file for file in each.files if file.executable or file.path.endswith(_SCRIPTS)]
        for file in scripts:
            print_result(styled(f"{each.kind}s/{each.name}/{file.path}, from {each.origin.address}", bold=True))
            print_line(file.content.decode("utf-8", "replace").rstrip("\n"))
        others = [f"{file.path} ({humanize.size(len(file.content))})" for file in each.files if file not in scripts]
        if others:
            print_result(f"other files of {each.kind}s/{each.name}: {', '.join(others)}")


@click.command("update")
@click.argument("recipes", nargs=-1, metavar="[RECIPE]…", shell_complete=names("recipes"))
@_ref
@yes_option
@force_option
@pass_context
def update_recipes(context: Context, recipes: tuple[str, ...], ref: str | None, yes: bool, force: bool) -> int:
    """Move copied recipes to what their repositories have now.

    Without names all copies are looked up. The differences are shown before anything is replaced.
    """
    return _update(context, "recipe", recipes, ref, yes=yes, force=force)


def _update(
    context: Context, kind: Kind, names_typed: Sequence[str], ref: str | None, *, yes: bool, force: bool
) -> int:
    from builder.commands import mods_update

    planned = mods_update.plan(context.project, kind, names_typed, ref, print_message)
    code = make_copies(context, planned.copies, mods_update.run, yes=yes, force=force)
    planned.require_all()
    return code


def make_copies(
    context: Context,
    planned: Sequence[PlannedCopy],
    make: _Making,
    *,
    yes: bool,
    force: bool,
    scripts_shown: bool = False,
) -> int:
    """Shows what would be replaced and, unless they were shown, the scripts of new mods; asks, and makes the copies."""
    from builder.commands import mods_add

    replacing = [each for each in planned if each.replaces and not each.is_shipped]
    new = [each for each in planned if each.kind == "mod" and each.changes and each not in replacing]
    for each in replacing:
        _print_difference(each)
    if not scripts_shown:
        print_scripts(new)
    if yes and not force:
        mods_add.require_lossless(planned)
    if new and not (yes or scripts_shown) and sys.stdin.isatty():
        taken = ", ".join(f"mods/{each.name}" for each in new)
        if not confirm(f"take {taken}?", default=True):
            print_result("nothing was changed")
            return 1
    if replacing and not yes and not (sys.stdin.isatty() and confirm("replace them?")):
        print_result("nothing was changed; --yes replaces without asking")
        return 1
    _put_in_place(context.project, planned, make)
    return 0


def _put_in_place(project: Project, planned: Sequence[PlannedCopy], make: _Making) -> None:
    notes = make(project, planned)
    for each in planned:
        print_result(_outcome(each))
    for note in notes:
        print_note(f"note: {note}")


def _print_difference(planned: PlannedCopy) -> None:
    from builder.cli import diff_text

    before = planned.previous.commit[:12] if planned.previous else "what is here"
    print_result(styled(f"{planned.kind}s/{planned.name}: {before} → {planned.origin.commit[:12]}", bold=True))
    for line in diff_text.of_files(planned.changes, full=True):
        print_line(line)
    if planned.edited:
        print_result(f"edited here since it was copied, and lost: {', '.join(planned.edited)}")
    elif planned.loses:
        print_result("what is here was not copied from anywhere, and would be lost")


def _outcome(planned: PlannedCopy) -> str:
    what, commit = f"{planned.kind}s/{planned.name}", planned.origin.commit[:12]
    if planned.before is None:
        return f"{what}: copied, commit {commit}"
    if planned.replaces and planned.is_shipped:
        return f"{what}: commit {commit} replaces the one that came with builder, which nobody edited"
    return f"{what}: replaced by commit {commit}" if planned.changes else f"{what}: unchanged in commit {commit}"

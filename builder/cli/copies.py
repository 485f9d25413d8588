"""``add`` and ``update`` of ``builder mods`` and ``builder recipes``: copies from other repositories."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from builder.cli.completers import names
from builder.cli.context import Context, pass_context
from builder.cli.output import confirm, print_line, print_message, print_note, print_result
from builder.cli.terminal_text import styled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from builder.copies.origin import Kind
    from builder.copies.planning import PlannedCopy
    from builder.project import Project

    # Makes copies, and returns notes on them.
    _Making = Callable[[Project, Sequence[PlannedCopy]], tuple[str, ...]]

_ADDRESS = "GIT-URL[//PATH][@REF]"
_yes = click.option("--yes", is_flag=True, help="Replace without asking, but nothing that would be lost.")
_force = click.option(
    "--force", is_flag=True, help="With --yes: replace also what was edited here, or was never copied."
)
_all = click.option("--all", "everything", is_flag=True, help="Copy all that are there.")
_ref = click.option("--ref", metavar="REF", help="The branch, tag or commit to move to, and to follow from now on.")


@click.command("add")
@click.argument("address", metavar=_ADDRESS)
@click.option("--as", "name", metavar="NAME", help="The name that the mod gets here.")
@_all
@_yes
@_force
@pass_context
def add_mods(context: Context, address: str, name: str | None, everything: bool, yes: bool, force: bool) -> int:
    """Copy a mod from another repository, with where it came from.

    The address is that of a git repository, then // and the mod's folder, then @ and a branch, tag or commit (else the
    default branch): https://github.com/OWNER/REPOSITORY//mods/NAME@main. The address of the folder's page on GitHub
    will do, too. Where the project has the mod already, the differences are shown before anything is replaced.
    """
    from builder.commands import mods_add

    planned = mods_add.plan(context.project, address, name, print_message, everything=everything)
    return _make(context, planned, mods_add.run, yes=yes, force=force)


@click.command("update")
@click.argument("mods", nargs=-1, metavar="[MOD]…", shell_complete=names("mods"))
@_ref
@_yes
@_force
@pass_context
def update_mods(context: Context, mods: tuple[str, ...], ref: str | None, yes: bool, force: bool) -> int:
    """Move copied mods to what their repositories have now.

    Without names all copies are looked up. The differences are shown before anything is replaced.
    """
    return _update(context, "mod", mods, ref, yes=yes, force=force)


@click.command("add")
@click.argument("address", metavar=_ADDRESS)
@click.option("--as", "name", metavar="NAME", help="The name that the recipe gets here.")
@_all
@click.option("--with-mods", is_flag=True, help="Copy the mods that it names, too, where the project lacks them.")
@_yes
@_force
@pass_context
def add_recipes(
    context: Context, address: str, name: str | None, everything: bool, with_mods: bool, yes: bool, force: bool
) -> int:
    """Copy a recipe from another repository, with where it came from.

    The address is that of a git repository, then // and the recipe's path, then @ and a branch, tag or commit (else the
    default branch). Mods that the recipe names and the project lacks come along with --with-mods, or when you agree.
    """
    from builder.commands import recipes_add

    copies = recipes_add.plan(context.project, address, name, print_message, everything=everything)
    lacking = ", ".join(mod.name for mod in copies.mods)
    if lacking and not with_mods and not yes and sys.stdin.isatty():
        with_mods = confirm(f"copy the mods that the recipe names as well ({lacking})?", default=True)
    planned = recipes_add.together(copies, with_mods=with_mods)
    code = _make(context, planned, recipes_add.run, yes=yes, force=force)
    if lacking and not with_mods:
        print_note(f"the project lacks mods that are named: {lacking}; --with-mods brings them along")
    if copies.missing:
        print_note(f"neither the project nor that repository has the mods: {', '.join(copies.missing)}")
    return code


@click.command("update")
@click.argument("recipes", nargs=-1, metavar="[RECIPE]…", shell_complete=names("recipes"))
@_ref
@_yes
@_force
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
    code = _make(context, planned.copies, mods_update.run, yes=yes, force=force)
    planned.require_all()
    return code


def _make(context: Context, planned: Sequence[PlannedCopy], make: _Making, *, yes: bool, force: bool) -> int:
    """Shows what would be replaced, asks, and makes the copies."""
    from builder.commands import mods_add

    replacing = [each for each in planned if each.replaces]
    for each in replacing:
        _print_difference(each)
    if yes and not force:
        mods_add.require_lossless(planned)
    if replacing and not yes and not (sys.stdin.isatty() and confirm("replace them?")):
        print_result("nothing was changed; --yes replaces without asking")
        return 1
    notes = make(context.project, planned)
    for each in planned:
        print_result(_outcome(each))
    for note in notes:
        print_note(f"note: {note}")
    return 0


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
    return f"{what}: replaced by commit {commit}" if planned.changes else f"{what}: unchanged in commit {commit}"

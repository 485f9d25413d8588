"""``builder mods``: ``list``, ``check``, ``pin`` and ``new``; ``add`` and ``update`` are in ``copies``."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING

import click

from builder.cli import copies, table
from builder.cli.command_table import Group
from builder.cli.completers import names
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json, print_line, print_message, print_result
from builder.cli.terminal_text import styled

if TYPE_CHECKING:
    from builder.commands.mods_list import ListedMod


class _AgainstCommand(click.Command):
    """A command whose ``--against`` takes all values up to the next option; an option of click takes one value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        taking = False
        for before, arg in pairwise(["", *args]):
            is_option = arg.startswith("-")
            if is_option and before == "--against":  # click would take it for the value
                raise click.BadOptionUsage("against", "Option '--against' requires an argument.", ctx)
            if taking and not is_option and before != "--against":
                spread.append("--against")
            spread.append(arg)
            taking = arg.partition("=")[0] == "--against" if is_option else taking
        return super().parse_args(ctx, spread)


@click.group(cls=Group)
def mods() -> None:
    """List mods, check what they apply to, copy or begin one."""


mods.add_command(copies.add_mods)
mods.add_command(copies.update_mods)


@mods.command("list")
@json_option
@pass_context
def list_(context: Context, as_json: bool) -> None:
    """Show every mod: what it changes, what it needs, where it came from, and who uses it."""
    from builder.commands import mods_list

    all_mods = mods_list.run(context.project)
    if as_json:
        from builder.cli import mods_json

        print_json(mods_json.list_json(all_mods))
        return
    if not all_mods:
        print_result("no mods yet: `builder mods new NAME` begins one")
    for listed in all_mods:
        print_result(styled(listed.name, bold=True))
        if listed.mod and listed.mod.description:
            print_result(f"  {listed.mod.description}", hanging=0)
        headings = ("", "conflicts", "")  # the widest name, so that the facts of all mods line up
        for line in table.lines(headings, _facts(listed), table.width())[1:]:
            print_line(line)


def _facts(listed: ListedMod) -> list[tuple[str, ...]]:
    from builder.commands import mods_list

    users = (
        *(f"definition {name}" for name in listed.definitions),
        *(f"recipe {name}" for name in listed.recipes),
        *(f"image {name}" for name in listed.images),
    )
    facts = [("broken", listed.problem)]
    if listed.mod:
        requires = ", ".join(f"{name} {specifier}" for name, specifier in listed.mod.requires.items())
        facts = [
            ("changes", "; ".join(mods_list.changes(listed.mod))),
            ("requires", requires),
            ("conflicts", ", ".join(listed.mod.conflicts)),
            ("after", ", ".join(listed.mod.after)),
        ]
    if listed.origin:
        facts += [
            ("from", f"{listed.origin.address}, commit {listed.origin.commit[:12]}"),
            ("edited", f"since it was copied: {', '.join(listed.edited)}" if listed.edited else ""),
        ]
    return [("", name, value) for name, value in (*facts, ("used by", ", ".join(users) or "nobody")) if value]


@mods.command(cls=_AgainstCommand)
@click.argument("mods", nargs=-1, metavar="[MOD]…", shell_complete=names("mods"))
@click.option(
    "--against", "refs", multiple=True, metavar="REF…", help="Versions, tags or commits to try in place of the pins."
)
@json_option
@pass_context
def check(context: Context, mods: tuple[str, ...], refs: tuple[str, ...], as_json: bool) -> int:
    """Tell whether patches apply, without building.

    Each MOD (all, if none is named) is tried on what images.lock pins for the recipes and definitions that use it, or
    else for those that could. Nothing is resolved, and no engine is needed.

    With --against it is tried on other versions: 0.20.0 is a released wheel of vLLM, v0.20.0, main or a commit is taken
    from its repository, and transformers=5.1.0 means another package. It takes all values up to the next option, so
    name the mods first: builder mods check MOD --against 0.20.0 0.21.0

    Ends with 1 if a mod does not apply, or requires another version.
    """
    from builder.cli import mods_text
    from builder.commands import mods_check, mods_check_pinned

    if refs:
        verdicts = mods_check.run(context.project, mods, refs, os.environ, print_message)
    else:
        verdicts = mods_check_pinned.run(context.project, mods, os.environ, print_message)
    if as_json:
        from builder.cli import mods_json

        print_json(mods_json.check_json(verdicts))
    else:
        for line in mods_text.lines(verdicts, table.width()):
            print_line(line)
    if not mods:
        mods_check.require_valid(context.project)
    return 0 if all(verdict.holds for verdict in verdicts) else 1


@mods.command()
@click.argument("mod", shell_complete=names("mods"))
@pass_context
def pin(context: Context, mod: str) -> None:
    """Pin the files that a mod takes from addresses.

    Fetches what is there today, and writes its SHA-256 into mod.yaml. A build fails where an address has another
    content than that.
    """
    from builder.commands import mods_pin

    for pinned in mods_pin.run(context.project, mod, os.environ, print_message):
        print_result(pinned.address)
        if pinned.before == pinned.sha256:
            print_result(f"  sha256 {pinned.sha256}, as before")
        else:
            before = f" in place of {pinned.before}" if pinned.before else ""
            print_result(f"  sha256 {pinned.sha256}{before}")


@mods.command()
@click.argument("name")
@pass_context
def new(context: Context, name: str) -> None:
    """Begin a mod that works as it is, with every key explained and a test."""
    from builder.commands import mods_new

    files = mods_new.run(context.project, name)
    for file in files:
        print_result(context.project.relative(file))
    begun = files[0].parent.name
    print_result(f"next: `builder mods check {begun}`, then `builder build TARGET --mod {begun}`")

"""The command line of builder mods."""

from __future__ import annotations

import os
import sys
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from builder import commands
from builder.base import words
from builder.cli import output
from builder.cli.main import Group
from builder.cli.options import Context, json_and_context, names, pass_context, repeated
from builder.cli.output import confirm, data, print_json, print_line, print_message, print_note, print_result, styled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from builder.base.project import Project
    from builder.building.mod_choice import ModVerdict, TriedPatch
    from builder.definitions.mod import Mod
    from builder.moving.copies import Kind, PlannedCopy

# Files that are run, or that contain commands (mod.yaml).
_SCRIPTS = (".sh", ".py", "mod.yaml")
ADDRESS = "GIT-URL[//PATH][@REF]"
yes_option = click.option(
    "--yes", is_flag=True, help="Replace without asking. If edits would be lost, replace nothing and end with 1."
)
force_option = click.option(
    "--force", is_flag=True, help="With --yes: also replace files that you edited, and files that are not copies."
)
all_option = click.option("--all", "everything", is_flag=True, help="Copy all mods or recipes at the address.")


@click.command("add")
@click.argument("address", metavar=f"{ADDRESS}|NAME")
@click.option("--as", "name", metavar="NAME", help="Give the mod this name in the project.")
@all_option
@yes_option
@force_option
@pass_context
def add_mods(context: Context, address: str, name: str | None, everything: bool, yes: bool, force: bool) -> int:
    """Copy a mod from another repository, and record where it came from.

    The address is a git repository, then // and the mod's folder, then @ and a branch, tag or commit (else the
    default branch): https://github.com/OWNER/REPOSITORY//mods/NAME@main. The address of the folder's page on GitHub
    also works, as does NAME if builder or `mod_sources` in builder.yaml knows the mod. Before it copies anything, the
    command shows the scripts that a build would run. If the project already has the mod, the command shows the
    differences before it replaces anything.
    """
    planned = commands.mods.plan_copies(context.project, address, name, print_message, everything=everything)
    return make_copies(context, planned, yes=yes, force=force)


def _update_command(kind: Kind) -> click.Command:
    about = (
        f"Update copied {kind}s from their repositories.\n\n"
        f"Without names, all copied {kind}s are updated. The differences are shown before anything is replaced."
    )

    @click.command("update", help=about)
    @click.argument("copies", nargs=-1, metavar=f"[{kind.upper()}]…", shell_complete=names(f"{kind}s"))
    @click.option("--ref", metavar="REF", help="Move to this branch, tag or commit, and follow it from now on.")
    @yes_option
    @force_option
    @pass_context
    def update(context: Context, copies: tuple[str, ...], ref: str | None, yes: bool, force: bool) -> int:
        planned, faults = commands.mods.plan_copies_update(context.project, kind, copies, ref, print_message)
        code = make_copies(context, planned, yes=yes, force=force)
        commands.mods.raise_all(faults)
        return code

    return update


update_recipes = _update_command("recipe")


def offer_mods(project: Project, names_lacking: Iterable[str]) -> tuple[str, ...]:
    """For each missing mod with a known address, asks whether to fetch it, shows its scripts, and asks whether to copy
    it. Returns the names of the copied mods."""
    taken = []
    for name, address in commands.mods.known_addresses(project, names_lacking).items():
        if not confirm(f"the recipe names the mod {name}, which the project lacks: fetch it from {address}?"):
            continue
        planned = commands.mods.plan_copies(project, address, name, print_message, everything=False)
        print_scripts(planned)
        if confirm(f"copy mods/{name} into the project?"):
            _put_in_place(project, planned)
            taken.append(name)
    return tuple(taken)


def print_scripts(planned: Sequence[PlannedCopy]) -> None:
    """Shows the scripts of foreign mods that a build would run, and lists their other files with sizes."""
    for each in planned:
        scripts = [file for file in each.files if file.executable or file.path.endswith(_SCRIPTS)]
        source = f", from {each.origin.address}" if each.origin else ""
        for file in scripts:
            print_result(styled(f"{each.kind}s/{each.name}/{file.path}{source}", bold=True))
            print_line(file.content.decode("utf-8", "replace").rstrip("\n"))
        others = [f"{file.path} ({words.size_text(len(file.content))})" for file in each.files if file not in scripts]
        if others:
            print_result(f"other files of {each.kind}s/{each.name}: {', '.join(others)}")


def make_copies(
    context: Context, planned: Sequence[PlannedCopy], *, yes: bool, force: bool, scripts_shown: bool = False
) -> int:
    """Shows the files to replace and, unless already shown, the scripts of new mods. Asks, then makes the copies."""
    replacing = [each for each in planned if each.replaces and not each.is_shipped]
    new = [each for each in planned if each.kind == "mod" and each.changes and each not in replacing]
    for each in replacing:
        _print_difference(each)
    if not scripts_shown:
        print_scripts(new)
    if yes and not force:
        commands.mods.require_lossless(planned)
    if new and not (yes or scripts_shown) and sys.stdin.isatty():
        taken = ", ".join(f"mods/{each.name}" for each in new)
        if not confirm(f"copy {taken} into the project?", default=True):
            print_result("nothing was changed")
            return 1
    if replacing and not output.agreed("replace them?", yes=yes):
        print_result("nothing was changed; --yes replaces without asking")
        return 1
    _put_in_place(context.project, planned)
    return 0


def _put_in_place(project: Project, planned: Sequence[PlannedCopy]) -> None:
    notes = commands.mods.make_copies(project, planned)
    for each in planned:
        what, commit = f"{each.kind}s/{each.name}", each.commit
        if each.before is None:
            print_result(f"{what}: copied, commit {commit}")
        elif each.replaces and each.is_shipped:
            print_result(f"{what}: commit {commit} replaces the copy that came with builder, which nobody edited")
        else:
            print_result(f"{what}: {'replaced by' if each.changes else 'unchanged in'} commit {commit}")
    for note in notes:
        print_note(f"note: {note}")


def _print_difference(planned: PlannedCopy) -> None:
    from builder.cli import diff_cli

    before = planned.previous.commit[:12] if planned.previous else "the present files"
    print_result(styled(f"{planned.kind}s/{planned.name}: {before} → {planned.commit}", bold=True))
    for line in diff_cli.of_files(planned.changes, full=True):
        print_line(line)
    if planned.edited:
        print_result(f"these files were edited here, and the edits would be lost: {', '.join(planned.edited)}")
    elif planned.loses:
        print_result("the files here are not a copy, and would be lost")


@click.group(cls=Group)
def mods() -> None:
    """List, check, copy and create mods."""


mods.add_command(add_mods)
mods.add_command(_update_command("mod"))


@mods.command("list")
@json_and_context
def list_(context: Context, as_json: bool) -> None:
    """Show every mod: its changes, requirements, origin and users."""
    all_mods = commands.mods.list_mods(context.project)
    if as_json:
        print_json({"mods": [_listed_json(listed) for listed in all_mods]})
        return
    if not all_mods:
        print_result("no mods yet; to create one: `builder mods new NAME`")
    for listed in all_mods:
        print_result(styled(listed.name, bold=True))
        if listed.mod and listed.mod.description:
            print_result(f"  {listed.mod.description}", hanging=0)
        # The widest name, so that the facts of all mods are aligned.
        output.print_facts(_facts(listed), widest=("", "conflicts", ""))


def _facts(listed: commands.mods.ListedMod) -> list[tuple[str, ...]]:
    users = (
        *(f"definition {name}" for name in listed.definitions),
        *(f"recipe {name}" for name in listed.recipes),
        *(f"image {name}" for name in listed.images),
    )
    facts = [("broken", listed.problem)]
    if listed.mod:
        requires = ", ".join(f"{name} {specifier}" for name, specifier in listed.mod.requires.items())
        facts = [
            ("changes", "; ".join(commands.mods.changes(listed.mod))),
            ("requires", requires),
            ("conflicts", ", ".join(listed.mod.conflicts)),
            ("after", ", ".join(listed.mod.after)),
        ]
    if listed.origin:
        facts += [
            ("from", f"{listed.origin.address}, commit {listed.origin.commit[:12]}"),
            ("edited", f"since it was copied: {', '.join(listed.edited)}" if listed.edited else ""),
        ]
    return [("", name, value) for name, value in (*facts, ("used by", ", ".join(users) or "nothing")) if value]


@mods.command()
@click.argument("mods", nargs=-1, metavar="[MOD]…", shell_complete=names("mods"))
@repeated("--against", "refs", metavar="REF,…", help="Try these versions, tags or commits instead of the pins.")
@json_and_context
def check(context: Context, mods: tuple[str, ...], refs: tuple[str, ...], as_json: bool) -> int:
    """Check whether patches apply, without building.

    Each MOD (default: all) is tested on the pins of every recipe and definition that uses it. An unused mod is tested
    on the definitions that contain the packages that it changes. The command resolves nothing. It needs the engine
    only for packages of a base image. The engine must already have that image; a build pulls it.

    With --against, each mod is tested on other versions. 0.20.0 is a released wheel of vLLM. v0.20.0, main or a commit
    comes from vLLM's repository. transformers=5.1.0 is a version of another package. Commas separate several versions:
    --against 0.20.0,0.21.0

    The command ends with 1 if a mod does not apply, or requires another version.
    """
    if refs:
        versions = [each for ref in refs for each in ref.split(",") if each]
        verdicts = commands.mods.check_mods(context.project, mods, versions, os.environ, print_message)
    else:
        verdicts = commands.mods.check_pinned_mods(context.project, mods, os.environ, print_message)
    if as_json:
        own = groupby(verdicts, lambda verdict: verdict.mod)
        print_json({"mods": [_checked_json(mod, list(of_mod)) for mod, of_mod in own]})
    else:
        for line in lines(verdicts, output.width()):
            print_line(line)
    if not mods:
        commands.mods.require_valid(context.project)
    return 0 if all(verdict.holds for verdict in verdicts) else 1


@mods.command()
@click.argument("mod", shell_complete=names("mods"))
@pass_context
def pin(context: Context, mod: str) -> None:
    """Pin the files that a mod fetches.

    The command fetches the current files, and writes their SHA-256 into mod.yaml. A build fails if an address later
    returns different content.
    """
    for address, digest, before in commands.mods.pin_mod_files(context.project, mod, os.environ, print_message):
        print_result(address)
        changed = f" (before: {before})" if before else ""
        print_result(f"  sha256 {digest}{', unchanged' if before == digest else changed}")


@mods.command()
@click.argument("name")
@pass_context
def new(context: Context, name: str) -> None:
    """Create a mod that works, with a test and a comment on every key."""
    files = commands.mods.new_mod(context.project, name)
    for file in files:
        print_result(context.project.relative(file))
    begun = files[0].parent.name
    print_result(f"next: `builder mods check {begun}`, then `builder build TARGET --mod {begun}`")


def _listed_json(listed: commands.mods.ListedMod) -> dict[str, Any]:
    """A mod of the list. If it cannot be read, it has no ``changes``, and ``problem`` has the reason."""
    mod, of_patch = listed.mod, "file package strip"
    changes = mod and {
        **data(mod, "packages run network env"),
        "files": [data(copy, "from=source to sha256" if copy.sha256 else "from=source to") for copy in mod.copies],
        "patches": [data(patch, f"{of_patch} version" if patch.version else of_patch) for patch in mod.patches],
    }
    none: dict[str, Any] = {"description": "", "requires": {}, "conflicts": [], "after": []}
    facts = data(mod, "description requires conflicts after") if mod else none
    return {
        **data(listed, "mod=name problem"),
        **facts,
        "changes": changes,
        **data(listed, "content_hash=mod.content_hash definitions recipes images edited"),
        "source": data(listed.origin, "url path ref commit content"),
    }


def _checked_json(mod: Mod, verdicts: Sequence[ModVerdict]) -> dict[str, Any]:
    """The targets on which a mod was tried, the outcome of each patch there, and what its script does."""
    tried = "file package against state=outcome.state problem=outcome.problem offsets=outcome.offsets"
    keys = (
        f"target state holds hint=is_hint excluded_by=excluded missing patches=tried({tried} reduced=outcome.reduced)"
    )
    script = data(verdicts[0].script, "file=name patches downloads run_time")
    return {**data(mod, "mod=name requires"), "checks": data(verdicts, keys), "script": script}


def lines(verdicts: Sequence[ModVerdict], columns: int) -> Iterator[str]:
    """A block for each mod, with a line for each target. For a mod without patches, other known facts instead."""
    for mod, own in groupby(verdicts, lambda verdict: verdict.mod):
        yield styled(mod.name, bold=True)
        requires = ", ".join(f"{name} {specifier}" for name, specifier in mod.requires.items())
        rows = [("", "requires", requires)] if requires else []
        of_mod = list(own)
        below = [] if mod.patches else list(_below(of_mod))
        if all(verdict.state == "no patches" for verdict in of_mod):
            below.insert(0, verdict_text(of_mod[0]))
        else:
            rows += [row for verdict in of_mod for row in _rows(verdict)]
        yield from output.lines(("", "", ""), rows, columns)[1:]
        for line in below:
            yield from output.fold(f"  {line}", columns, hanging=0)


def verdict_text(verdict: ModVerdict) -> str:
    """Describes a verdict: the patches that apply, and file and hunk of each patch that fails."""
    if verdict.missing:
        return f"not tried: {verdict.missing}"
    texts = dict.fromkeys(_patch_text(tried, verdict) for tried in verdict.tried)
    if verdict.excluded:
        texts = dict.fromkeys([f"excluded: {verdict.excluded}", *texts])
    return "; ".join(texts) or _nothing_tried(verdict)


def _rows(verdict: ModVerdict) -> Iterator[tuple[str, str, str]]:
    """The line of a verdict. Patches of a script get a line each, because the script may leave some out."""
    texts = [verdict_text(verdict)]
    if verdict.is_hint and verdict.tried and not verdict.excluded:
        texts = [f"hint: {_patch_text(tried, verdict)}" for tried in verdict.tried]
    for number, text in enumerate(texts):
        yield ("", "" if number else verdict.target or "-", text)


def _patch_text(tried: TriedPatch, verdict: ModVerdict) -> str:
    outcome = tried.outcome
    file = f"{tried.file}: " if len(verdict.tried) > 1 else ""
    on = "" if tried.against == verdict.target else f" on {tried.against}"
    if outcome.state == "not tried":
        return f"{file}not tried: {outcome.problem}"
    if outcome.state == "fails":
        return f"{file}{'does not apply' if verdict.is_hint else 'FAILS'}{on}: {outcome.problem}"
    if outcome.state == "in place":
        return f"{file}already applied{on.replace(' on ', ' in ')}"
    if outcome.reduced:
        return f"{file}applies{on} (fuzz): {'; '.join(outcome.reduced)}"
    if outcome.offsets:
        hunks, furthest = words.counted(len(outcome.offsets), "hunk"), max(map(abs, outcome.offsets))
        return f"{file}applies{on} (offset): {hunks} up to {words.counted(furthest, 'line')} away"
    return f"{file if verdict.is_hint else ''}applies{on}"


def _nothing_tried(verdict: ModVerdict) -> str:
    mod, script = verdict.mod, verdict.script
    if mod.patches:
        packages = dict.fromkeys(patch.package for patch in mod.patches)
        ways = " or ".join(f"`--against {package}=VERSION`" for package in packages)
        return f"its patches change {' and '.join(packages)}; to try them: {ways}"
    if script and script.instead:
        return script.instead
    if script and script.patches:
        return f"{script.name} applies patches to an unknown place: not tried"
    return f"no patches to check{f'; {script.name} runs only in a build' if script else ''}"


def _below(verdicts: Sequence[ModVerdict]) -> Iterator[str]:
    """Lines on how to prove a mod that declares no patches."""
    mod, script = verdicts[0].mod, verdicts[0].script
    if script and script.instead:
        return
    if script and any(verdict.is_hint and verdict.tried for verdict in verdicts):
        yield f"only hints: {script.name} applies the patches itself, and may skip some or change other files"
    if script and script.unnamed:
        yield f"{script.name} does not name {', '.join(script.unnamed)}"
    is_proven = "the `check:` in mod.yaml proves" if mod.checks else "a `check:` in mod.yaml would prove"
    yield f"{is_proven} the mod in each image that is built"

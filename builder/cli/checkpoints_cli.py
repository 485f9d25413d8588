"""The command line of builder checkpoints."""

from __future__ import annotations

import click

from builder import commands
from builder.base import words
from builder.cli import output
from builder.cli.main import Group
from builder.cli.measure_cli import compare_checkpoint
from builder.cli.options import Context, json_and_context, names
from builder.cli.output import data, print_json, print_line, print_result, styled, verbosity_options

_MOST_SHARDS = 8

update_sources = click.option("--update", is_flag=True, help="Look up the revisions of the sources again.")


@click.group(cls=Group)
def checkpoints() -> None:
    """Make the weights that a recipe serves, in recorded steps."""


@checkpoints.command()
@click.argument("name", metavar="NAME", shell_complete=names("checkpoints"))
@update_sources
@json_and_context
def plan(context: Context, name: str, update: bool, as_json: bool) -> None:
    """Show what a build would do, without reading any weights.

    The command reads only the headers of the sources, and fetches only the headers from the Hub. The command shows what
    each step changes, the files of the result, and the cost: bytes to download, read and write, disk space and time.
    For a step that cannot work, the error names the line in checkpoint.yaml.
    """
    outlook = commands.checkpoints.plan_checkpoint(context.workspace(), name, update=update)
    planned = outlook.plan
    if as_json:
        print_json(
            {
                **data(planned, "checkpoint=definition.name model=definition.model inputs"),
                **data(planned, "sources(asked=requested commit) steps=content.effects(does=text tensors)"),
                "files": [
                    {**data(shard, "name size"), "tensors": len(shard.names), "copied": shard.copied}
                    for shard in planned.shards
                ],
                "tensors": len(planned.content.tensors),
                **data(planned, "fetch=fetched read write=size"),
                **data(outlook, "folder free needed seconds~ made"),
            }
        )
        return
    print_result(styled(planned.definition.name, bold=True))
    print_result(f"  {planned.definition.description}", hanging=0)
    sources = [
        ("from", f"{name}: {_source_text(source.requested, source.commit)}") for name, source in planned.sources.items()
    ]
    output.print_facts(sources, indent="  ")
    print_line()
    rows = [(str(number), effect.text) for number, effect in enumerate(planned.content.effects, 1)]
    output.print_table(("STEP", "DOES"), rows)
    print_line()
    shown = planned.shards[:_MOST_SHARDS]
    files = [(shard.name, words.size_text(shard.size), str(len(shard.names))) for shard in shown]
    if rest := planned.shards[_MOST_SHARDS:]:
        more = sum(shard.size for shard in rest)
        files.append((f"and {len(rest)} more", words.size_text(more), str(sum(len(shard.names) for shard in rest))))
    output.print_table(("FILE", "SIZE", "TENSORS"), files)
    print_line()
    output.print_facts(_costs(outlook))


def _source_text(requested: str, commit: str | None) -> str:
    return requested + (f", commit {commit[:12]}" if commit else "")


def _costs(outlook: commands.checkpoints.CheckpointOutlook) -> list[tuple[str, str]]:
    planned = outlook.plan
    if outlook.made:
        return [("made", f"revision {outlook.made[:12]} in {outlook.folder}: nothing to do")]
    missing = planned.missing
    fetch = f"{words.size_text(planned.fetched)} in {words.counted(len(missing), 'file')}" if missing else "nothing"
    free = f"{words.size_text(outlook.needed)} required, {words.size_text(outlook.free)} free"
    if outlook.needed > outlook.free:
        free += ": not enough"
    return [
        ("fetch", fetch),
        ("read", words.size_text(planned.read)),
        ("write", f"{words.size_text(planned.size)} in {outlook.folder}"),
        ("disk", free),
        ("time", f"about {words.duration_text(max(outlook.seconds, 1))}" + (", plus the download" if missing else "")),
    ]


@checkpoints.command()
@click.argument("name", metavar="NAME", shell_complete=names("checkpoints"))
@update_sources
@verbosity_options
@json_and_context
def build(context: Context, name: str, update: bool, as_json: bool) -> None:
    """Make a checkpoint, and record its sources.

    The command first downloads missing source files. The checkpoint gets its name when it is complete. After a kill,
    the same command continues with the unfinished files. checkpoints.lock records the sources, the steps and the digest
    of every file.
    """
    with context.working() as workspace:
        made = commands.checkpoints.build_checkpoint(workspace, name, update=update)
    if as_json:
        keys = "checkpoint=name.name revision=name.revision folder size tensors"
        print_json({**data(made, keys), "made": made.seconds is not None, "seconds": made.seconds})
        return
    what = f"{made.tensors} tensors, {words.size_text(made.size)}"
    took = f"in {words.duration_text(made.seconds)}" if made.seconds is not None else "already exists"
    print_result(f"{made.name.short}: {what}, {took}")
    print_result(f"  {made.folder}")


@checkpoints.command()
@click.argument("name", metavar="[NAME]", required=False, shell_complete=names("checkpoints"))
@click.option("--full", is_flag=True, help="Read every byte, not only the headers.")
@verbosity_options
@json_and_context
def verify(context: Context, name: str | None, full: bool, as_json: bool) -> int:
    """Compare the checkpoints on this machine with checkpoints.lock.

    The command compares sizes, the headers of weights, and all small files. With --full, it compares every byte.
    Without NAME, it compares all checkpoints. It ends with 7 if a recorded checkpoint differs or is missing.
    """
    with context.working() as workspace:
        results = commands.checkpoints.verify_checkpoints(workspace, name, full=full)
    if as_json:
        print_json({"checkpoints": data(results, "checkpoint=name revision folder here=is_here problems")})
    elif not results:
        print_result("no checkpoint exists yet; to make one: `builder checkpoints build NAME`")
    for each in () if as_json else results:
        state = f"{each.files} files as recorded ({'every byte' if full else 'headers and small files'})"
        if not each.is_here:
            state = "not on this machine"
        elif each.problems:
            state = words.counted(len(each.problems), "problem")
        print_result(f"{each.name}@{each.revision[:12]}: {state}")
        for problem in each.problems:
            print_result(f"  {problem}", hanging=4)
        if each.problems:
            again = f"`rm -r {words.shell_word(each.folder)}`, then `builder checkpoints build {each.name}`"
            print_result(f"  to make it again: {again}", hanging=4)
    return 7 if any(each.problems or not each.is_here for each in results) else 0


@checkpoints.command("list")
@json_and_context
def list_(context: Context, as_json: bool) -> None:
    """Show every checkpoint that is defined or exists."""
    listed = commands.checkpoints.list_checkpoints(context.workspace())
    if as_json:
        print_json({"checkpoints": data(listed, _LISTED)})
    elif not listed:
        print_result("no checkpoints yet; `builder schema checkpoint` describes how to define one")
    else:
        rows = []
        for each in listed:
            revision = each.revisions[0].revision[:12] if each.revisions else "not made"
            if each.revisions and not each.revisions[0].folder:
                revision += ", not here"
            rows.append((each.name, revision, words.size_text(each.size_here), _about(each)))
        output.print_table(("NAME", "REVISION", "HERE", "DESCRIPTION"), rows)


@checkpoints.command()
@click.argument("name", metavar="NAME", shell_complete=names("checkpoints"))
@json_and_context
def show(context: Context, name: str, as_json: bool) -> None:
    """Show the sources of a checkpoint, and its folder."""
    listed = commands.checkpoints.show_checkpoint(context.workspace(), name)
    if as_json:
        print_json(listed, _LISTED)
        return
    print_result(styled(listed.name, bold=True))
    print_result(f"  {_about(listed)}", hanging=0)
    if listed.definition:
        mods = [("mods", ", ".join(listed.definition.mods))] if listed.definition.mods else []
        output.print_facts([("model", listed.definition.model), *mods], indent="  ")
    if not listed.revisions:
        print_result(f"not made yet; to see what it requires: `builder checkpoints plan {name}`")
    for each in listed.revisions:
        print_line()
        print_result(styled(f"{listed.name}@{each.revision}", bold=True))
        facts = [
            ("here", str(each.folder) if each.folder else "no"),
            ("files", f"{len(each.record.files)}, {words.size_text(each.record.size)}; {each.record.tensors} tensors"),
            *(("from", _source_text(source.requested, source.commit)) for source in each.record.sources.values()),
        ]
        output.print_facts(facts, indent="  ")


_LISTED = (
    "checkpoint=name description=definition.description model=definition.model problem? revisions(revision folder "
    "size=record.size tensors=record.tensors mods=record.mods sources=record.sources(asked=requested commit))"
)


def _about(listed: commands.checkpoints.ListedCheckpoint) -> str:
    if listed.problem:
        return f"broken: {listed.problem.splitlines()[0]}"
    return listed.definition.description if listed.definition else "made, but no longer defined"


checkpoints.add_command(compare_checkpoint)

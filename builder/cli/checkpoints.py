"""``builder checkpoints``: ``plan``, ``build``, ``verify``, ``list``, ``show`` and ``compare``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from builder import humanize
from builder.cli import checkpoints_json, table
from builder.cli.command_table import Group
from builder.cli.completers import names
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json, print_line, print_result
from builder.cli.terminal_text import styled
from builder.cli.verbosity import verbosity_options

if TYPE_CHECKING:
    from builder.commands.checkpoints_list import ListedCheckpoint
    from builder.commands.checkpoints_plan import CheckpointOutlook

_MOST_SHARDS = 8

update_sources = click.option("--update", is_flag=True, help="Look up the sources' revisions anew.")


@click.group(cls=Group)
def checkpoints() -> None:
    """Make the weights that a recipe serves, by recorded steps."""


@checkpoints.command()
@click.argument("name", metavar="NAME", shell_complete=names("checkpoints"))
@update_sources
@json_option
@pass_context
def plan(context: Context, name: str, update: bool, as_json: bool) -> None:
    """Tell what a build would do, from headers alone.

    Only the headers of the sources are read, on the Hub by ranges. What each step changes is shown, the files of the
    result, and what it takes: bytes to fetch, to read and to write, disk and time. A step that cannot be done is an
    error at its line of checkpoint.yaml.
    """
    from builder.commands import checkpoints_plan as command

    outlook = command.run(context.workspace(), name, update=update)
    if as_json:
        print_json(checkpoints_json.of_outlook(outlook))
        return
    planned = outlook.plan
    print_result(styled(planned.definition.name, bold=True))
    print_result(f"  {planned.definition.description}", hanging=0)
    facts = [("from", _source_text(outlook, source)) for source in planned.sources]
    table.print_facts(facts, indent="  ")
    print_line()
    rows = [(str(number), effect.text) for number, effect in enumerate(planned.content.effects, 1)]
    table.print_table(("STEP", "DOES"), rows)
    print_line()
    shown = planned.shards[:_MOST_SHARDS]
    files = [(shard.name, humanize.size(shard.size), str(len(shard.names))) for shard in shown]
    if rest := planned.shards[_MOST_SHARDS:]:
        more = sum(shard.size for shard in rest)
        files.append((f"and {len(rest)} more", humanize.size(more), str(sum(len(shard.names) for shard in rest))))
    table.print_table(("FILE", "SIZE", "TENSORS"), files)
    print_line()
    table.print_facts(_costs(outlook))


def _source_text(outlook: CheckpointOutlook, name: str) -> str:
    source = outlook.plan.sources[name]
    at = f" (commit {source.snapshot.commit[:12]})" if source.snapshot else ""
    return f"{name}: {source.requested}{at}"


def _costs(outlook: CheckpointOutlook) -> list[tuple[str, str]]:
    planned = outlook.plan
    if outlook.made:
        return [("made", f"revision {outlook.made[:12]} in {outlook.folder}: nothing to do")]
    missing = planned.missing
    fetch = f"{humanize.size(planned.fetched)} in {humanize.counted(len(missing), 'file')}" if missing else "nothing"
    free = f"{humanize.size(outlook.needed)}; {humanize.size(outlook.free)} are free"
    if outlook.needed > outlook.free:
        free += ": too little"
    return [
        ("fetch", fetch),
        ("read", humanize.size(planned.read)),
        ("write", f"{humanize.size(planned.size)} in {outlook.folder}"),
        ("disk", free),
        ("time", f"about {humanize.duration(max(outlook.seconds, 1))}" + (", and the fetching" if missing else "")),
    ]


@checkpoints.command()
@click.argument("name", metavar="NAME", shell_complete=names("checkpoints"))
@update_sources
@verbosity_options
@json_option
@pass_context
def build(context: Context, name: str, update: bool, as_json: bool) -> None:
    """Make a checkpoint, and record what it was made from.

    What the sources lack is fetched first. Bytes that do not change are copied by the kernel, the others are computed
    a piece at a time. The result has its name once it is whole; after a kill, the same command goes on with the files
    that are not. Sources, steps and the digest of every file go into checkpoints.lock.
    """
    from builder.cli import progress
    from builder.commands import checkpoints_build as command

    with progress.reporter() as report:
        made = command.run(context.workspace(report), name, update=update)
    if as_json:
        print_json(
            {
                "checkpoint": made.name.name,
                "revision": made.name.revision,
                "folder": str(made.folder),
                "size": made.size,
                "tensors": made.tensors,
                "made": made.seconds is not None,
                "seconds": made.seconds,
            }
        )
        return
    what = f"{made.tensors} tensors, {humanize.size(made.size)}"
    took = f"in {humanize.duration(made.seconds)}" if made.seconds is not None else "it was there already"
    print_result(f"{made.name.short}: {what}, {took}")
    print_result(f"  {made.folder}")


@checkpoints.command()
@click.argument("name", metavar="[NAME]", required=False, shell_complete=names("checkpoints"))
@click.option("--full", is_flag=True, help="Read every byte, and not the headers alone.")
@verbosity_options
@json_option
@pass_context
def verify(context: Context, name: str | None, full: bool, as_json: bool) -> int:
    """Compare what is on this machine with checkpoints.lock.

    Sizes, the headers of weights, the index and all small files are compared; with --full every byte. Without a NAME,
    all checkpoints are. Ends with 7 if one differs, or is recorded and not here.
    """
    from builder.cli import progress
    from builder.commands import checkpoints_verify as command

    with progress.reporter() as report:
        results = command.run(context.workspace(report), name, full=full)
    if as_json:
        print_json(
            {
                "checkpoints": [
                    {
                        "checkpoint": each.name,
                        "revision": each.revision,
                        "folder": str(each.folder),
                        "here": each.is_here,
                        "problems": list(each.problems),
                    }
                    for each in results
                ]
            }
        )
    elif not results:
        print_result("no checkpoint was made yet: `builder checkpoints build NAME` makes one")
    else:
        for each in results:
            how = "every byte" if full else "headers and small files"
            state = f"{each.files} files as recorded ({how})"
            if not each.is_here:
                state = "not on this machine"
            elif each.problems:
                state = humanize.counted(len(each.problems), "problem")
            print_result(f"{each.name}@{each.revision[:12]}: {state}")
            for problem in each.problems:
                print_result(f"  {problem}", hanging=4)
    return 7 if any(each.problems or not each.is_here for each in results) else 0


@checkpoints.command("list")
@json_option
@pass_context
def list_(context: Context, as_json: bool) -> None:
    """Show every checkpoint that is defined or was made."""
    from builder.commands import checkpoints_list as command

    listed = command.run(context.workspace())
    if as_json:
        print_json({"checkpoints": list(map(checkpoints_json.of_listed, listed))})
    elif not listed:
        print_result("no checkpoints yet: `builder schema checkpoint` tells what defines one")
    else:
        rows = [(each.name, _revision_text(each), humanize.size(each.size_here), _about(each)) for each in listed]
        table.print_table(("NAME", "REVISION", "HERE", "WHAT IT IS"), rows)


@checkpoints.command()
@click.argument("name", metavar="NAME", shell_complete=names("checkpoints"))
@json_option
@pass_context
def show(context: Context, name: str, as_json: bool) -> None:
    """Show what a checkpoint was made from, and where it is."""
    from builder.commands import checkpoints_show as command

    listed = command.run(context.workspace(), name)
    if as_json:
        print_json(checkpoints_json.of_listed(listed))
        return
    print_result(styled(listed.name, bold=True))
    print_result(f"  {_about(listed)}", hanging=0)
    if listed.definition:
        mods = ", ".join(listed.definition.mods)
        facts = [("model", listed.definition.model), ("mods", mods)]
        table.print_facts([fact for fact in facts if fact[1]], indent="  ")
    if not listed.revisions:
        print_result(f"not made yet: `builder checkpoints plan {name}` tells what that takes")
    for each in listed.revisions:
        print_line()
        print_result(styled(f"{listed.name}@{each.revision}", bold=True))
        facts = [
            ("here", str(each.folder) if each.folder else "no"),
            ("files", f"{len(each.record.files)}, {humanize.size(each.record.size)}; {each.record.tensors} tensors"),
            *(
                ("from", f"{source.requested}" + (f", commit {source.commit[:12]}" if source.commit else ""))
                for source in each.record.sources.values()
            ),
        ]
        table.print_facts(facts, indent="  ")


def _about(listed: ListedCheckpoint) -> str:
    if listed.problem:
        return f"broken: {listed.problem.splitlines()[0]}"
    return listed.definition.description if listed.definition else "made, and defined no longer"


def _revision_text(listed: ListedCheckpoint) -> str:
    if not listed.revisions:
        return "not made"
    latest = listed.revisions[0]
    return latest.revision[:12] if latest.folder else f"{latest.revision[:12]}, not here"


@checkpoints.command()
@click.argument("what", metavar="RECIPE|MODEL", shell_complete=names("recipes", "models"))
@click.option("--source", default="", metavar="NAME", help="Compare with this source, in place of the first one taken.")
@click.option(
    "--most-loss",
    type=click.FloatRange(0, 100),
    default=2.0,
    show_default=True,
    metavar="PERCENT",
    help="How much worse the perplexity may be.",
)
@verbosity_options
@json_option
@pass_context
def compare(context: Context, what: str, source: str, most_loss: float, as_json: bool) -> int:
    """Hold a checkpoint against a source of it, on fixed texts.

    The source is served, then the checkpoint, each from the image that is paired and with the options of the recipe,
    and both rate the same texts of several languages and notations. Shown are the change of perplexity with its band
    (99 %), and how often both hold the same next token for likeliest. Nothing is generated, so sampling has no part in
    it; long contexts and tool calls are for `builder probe`. The result is kept in evidence/ beside images.lock.

    Ends with 1 unless the loss is surely within what is allowed.
    """
    from builder.cli import measured_text, progress
    from builder.commands import checkpoints_compare as command

    with progress.reporter() as report:
        kept = command.run(context.workspace(report), what, source, most_loss / 100)
    if as_json:
        print_json(measured_text.document(kept))
    else:
        measured_text.print_outcome(kept, str(context.project.root))
    return int(kept.outcome.verdict != "pass")

"""``builder advisories``, with ``show`` and ``update``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.cli import output, progress
from builder.cli.main import Group
from builder.cli.options import Context, json_option, pass_context
from builder.cli.output import data, print_json, print_message, print_note, print_result

if TYPE_CHECKING:
    from builder.definitions.advisories import Advisory, AdvisorySet

_KEYS = "id what do affects when details sources checked certain origin"


@click.group(cls=Group, invoke_without_command=True)
@json_option
@pass_context
def advisories(context: Context, as_json: bool) -> None:
    """Show what is known to go wrong, and with which versions.

    The commands that build, pin and serve, and `recipes check`, `nodes check` and `doctor`, show the advisories that
    apply. To silence one, write `silenced: {ID: WHY}` into builder.yaml.
    """
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is not None:
        if as_json:
            raise click.UsageError("`--json` goes after the name of the command", ctx)
        return
    from builder.commands import advising as command

    overview = command.known_advisories(context.project)
    if as_json:
        update = data(overview.update, "source commit? taken signed?") if overview.update else None
        listed = [_document(each, overview.silenced.get(each.id)) for each in overview.advisories]
        print_json({"advisories": listed, "update": update, "unknown": list(overview.unknown)})
        return
    rows = [(each.id, ": ".join(filter(None, (_affects(each), each.what)))) for each in overview.advisories]
    output.print_table(("ADVISORY", "WHAT HAPPENS"), rows)
    if overview.update:
        print_note(f"updated {_origin(overview.update)}")
    for name, note in overview.silenced.items():
        shown = f"{name} is silenced: {note}"
        print_note(f"{shown}; no advisory has that id" if name in overview.unknown else shown)


@advisories.command()
@click.argument("name", metavar="ID")
@json_option
@pass_context
def show(context: Context, name: str, as_json: bool) -> None:
    """Show one advisory: its condition, what to do, and the threads."""
    from builder.commands import advising as command

    advisory = command.find_advisory(context.project, name)
    if as_json:
        print_json(_document(advisory, None))
        return
    facts = [
        ("advisory", advisory.id),
        ("what", advisory.what),
        ("do", advisory.do),
        ("affects", _affects(advisory)),
        ("when", command.shown_condition(advisory)),
        ("details", advisory.details),
        ("sources", "\n".join(advisory.sources)),
        ("checked", advisory.checked),
        ("certain", "yes: it is an error" if advisory.certain else ""),
        ("from", advisory.origin),
    ]
    output.print_facts([(label, value) for label, value in facts if value])


@advisories.command()
@click.argument("source", required=False, metavar="[GIT-URL//FOLDER[@REF]|FILE]")
@click.option(
    "--signed-by",
    "signers",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Take only files that one of the allowed signers in FILE signed (ssh-keygen, ALLOWED SIGNERS).",
)
@json_option
@pass_context
def update(context: Context, source: str | None, signers: Path | None, as_json: bool) -> None:
    """Take advisories from a git repository or a file.

    Without a source, they come from the source of the last update, or from the repository of this program. Of two
    advisories with the same id, the one that was checked later counts. After an error the advisories stay unchanged.
    """
    from builder.commands import advising as command

    with progress.showing("taking advisories"):
        taken = command.update_advisories(context.project, source, signers, print_message)
    if as_json:
        print_json({"count": len(taken.advisories), **data(taken, "source commit? taken signed?")})
        return
    count = len(taken.advisories)
    print_result(f"{count} {'advisory' if count == 1 else 'advisories'} {_origin(taken)}")


def _origin(update: AdvisorySet) -> str:
    commit = f" at {update.commit[:12]}" if update.commit else ""
    signed = f", signed by {update.signed}" if update.signed else ""
    return f"from {update.source}{commit} on {update.taken[:10]}{signed}"


def _affects(advisory: Advisory) -> str:
    return ", ".join(f"{fact} {versions}" for fact, versions in advisory.affects.items())


def _document(advisory: Advisory, silenced: str | None) -> dict[str, Any]:
    return {**data(advisory, _KEYS), **({"silenced": silenced} if silenced else {})}

"""The command line of builder doctor, explain, schema, verify and advisories."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import commands
from builder.base.errors import ConflictError, EngineError, ImageStateError
from builder.cli import output, progress
from builder.cli.main import Group
from builder.cli.options import Context, WordChoice, json_and_context, json_option
from builder.cli.output import data, print_json, print_line, print_message, print_note, print_result, styled
from builder.commands.explaining import OUTPUTS, SCHEMAS

if TYPE_CHECKING:
    from builder.definitions.advisories import Advisory, AdvisorySet


@click.command()
@click.option(
    "--check-update",
    "releases",
    is_flag=False,
    flag_value="",
    metavar="[ADDRESS]",
    help="Check for a newer release in the repository of this program, or in the repository at ADDRESS.",
)
@click.option("--upstream", is_flag=True, help="Check whether upstream images still exist in their registries.")
@json_and_context
def doctor(context: Context, releases: str | None, upstream: bool, as_json: bool) -> int:
    """Look for anything that would make a build fail. The command ends with 1 if it finds an error."""
    with progress.showing("checking the machine and the project"):
        findings = commands.about.run_doctor(context.project, os.environ, releases=releases)
        if upstream:
            findings += tuple(commands.bases.upstream_findings(context.workspace()))
    if as_json:
        print_json({"findings": data(findings, "subject verdict said=message remedy")})
    else:
        for finding in findings:
            output.print_finding(finding)
    return 1 if any(finding.verdict == "error" for finding in findings) else 0


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="KEY|CODE")
@json_option
def explain(words: tuple[str, ...], as_json: bool) -> None:
    """Explain an exit code or a key of a file.

    \b
    builder explain 7                    an exit code
    builder explain serve.gpus           a key, in every file that has it
    builder explain recipe:env           the key of one file
    builder explain run-json:server      a key that `builder run --json` prints

    docs/reference contains the same explanations.
    """
    explanations = commands.about.explain_text(" ".join(words))
    if as_json:
        print_json({"explanations": data(explanations, "kind subject text=lines")})
        return
    for number, each in enumerate(explanations):
        if number:
            print_line()
        print_result(styled(f"{each.kind} {each.subject}" if each.kind == "exit code" else each.subject, bold=True))
        for line in each.lines:
            print_result(f"  {line}", hanging=4)


@click.command()
@click.argument(
    "name", required=False, type=WordChoice((*SCHEMAS, *OUTPUTS)), metavar=f"[{'|'.join(SCHEMAS)}|COMMAND-json]"
)
def schema(name: str | None) -> None:
    """Print the JSON Schema of a file, for editors.

    COMMAND-json describes what `builder COMMAND --json` prints. Without a name, the command lists the path of each
    schema. An editor with a YAML language server checks and completes a file whose first line is

    \b
        # yaml-language-server: $schema=PATH
    """
    if name is not None:
        output.print_document(commands.about.text(name))
        return
    for each, path in commands.about.FILES.items():
        output.print_facts([(each, commands.about.title(each)), ("", str(path))], widest=("builder", ""))


# The exit code and the colour of each kind, the most serious first. The most serious kind gives the exit code.
_KINDS = {
    "missing": (ImageStateError.exit_code, "red"),
    "moved": (ImageStateError.exit_code, "red"),
    "unknown": (EngineError.exit_code, "yellow"),
    "edited": (ConflictError.exit_code, "red"),
    "foreign": (0, "cyan"),
}


@click.command()
@click.option("--registry", is_flag=True, help="Also compare images.lock with the registry in builder.yaml.")
@json_and_context
def verify(context: Context, registry: bool, as_json: bool) -> int:
    """Compare images.lock with the engine and with the files.

    \b
    Ends with
      7  if an image is missing or moved
      5  if the engine, or with --registry the registry, does not answer
      1  if a build directory, a vendored patch or recorded evidence was edited
         or is gone
      0  otherwise; a `latest` of another project is listed, but is not an error
    """
    with progress.showing("comparing images.lock with the engine and the files"):
        findings = commands.about.verify_project(context.workspace())
        if registry:
            findings = (*findings, *commands.about.compare_registry(context.workspace()))
    if as_json:
        print_json({"findings": data(findings, "subject kind said=message remedy")})
    else:
        for each in findings:
            text = f"{each.subject}: {each.message}" + (f" → {each.remedy}" if each.remedy else "")
            output.print_facts([(styled(each.kind, fg=_KINDS[each.kind][1]), text)], widest=("missing", ""))
        if not findings:
            print_result("everything matches images.lock")
    return next((code for kind, (code, _) in _KINDS.items() if any(each.kind == kind for each in findings)), 0)


# Known problems: ``builder advisories``, with ``show`` and ``update``.

_ADVISORY = "id what do affects when details sources checked certain origin"


@click.group(cls=Group, invoke_without_command=True)
@json_and_context
def advisories(context: Context, as_json: bool) -> None:
    """Show known problems, and the versions that they affect.

    The commands that build, pin and serve show the advisories that apply. So do `recipes check`, `nodes check` and
    `doctor`. To silence one, write `silenced: {ID: WHY}` into builder.yaml.
    """
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is not None:
        if as_json:
            raise click.UsageError(f"`--json` goes after `{ctx.invoked_subcommand}`", ctx)
        return
    overview = commands.advising.known_advisories(context.project)
    if as_json:
        update = data(overview.update, "source commit? taken signed?") if overview.update else None
        listed = [_advisory_document(each, overview.silenced.get(each.id)) for each in overview.advisories]
        print_json({"advisories": listed, "update": update, "unknown": list(overview.unknown)})
        return
    rows = [(each.id, ": ".join(filter(None, (_affects(each), each.what)))) for each in overview.advisories]
    output.print_table(("ADVISORY", "WHAT HAPPENS"), rows)
    if overview.update:
        print_note(f"updated {_update_text(overview.update)}")
    for name, note in overview.silenced.items():
        shown = f"{name} is silenced: {note}"
        print_note(f"{shown}; no advisory has that id" if name in overview.unknown else shown)


@advisories.command()
@click.argument("name", metavar="ID")
@json_and_context
def show(context: Context, name: str, as_json: bool) -> None:
    """Show one advisory: its condition, what to do, and where the problem was reported."""
    advisory = commands.advising.find_advisory(context.project, name)
    if as_json:
        print_json(_advisory_document(advisory, None))
        return
    facts = [
        ("advisory", advisory.id),
        ("what", advisory.what),
        ("do", advisory.do),
        ("affects", _affects(advisory)),
        ("when", commands.advising.shown_condition(advisory)),
        ("details", advisory.details),
        ("sources", "\n".join(advisory.sources)),
        ("checked", advisory.checked),
        ("certain", "yes: shown as an error" if advisory.certain else ""),
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
    help="Accept only files signed by a signer that FILE allows. `man ssh-keygen`, ALLOWED SIGNERS, has the format.",
)
@json_and_context
def update(context: Context, source: str | None, signers: Path | None, as_json: bool) -> None:
    """Update the advisories from a git repository or a file.

    Without a source, the command uses the source of the last update, or the repository of this program. If two
    advisories have the same id, the one checked later is used. After an error, the advisories are unchanged.
    """
    with progress.showing("updating the advisories"):
        taken = commands.advising.update_advisories(context.project, source, signers, print_message)
    if as_json:
        print_json({"count": len(taken.advisories), **data(taken, "source commit? taken signed?")})
        return
    count = len(taken.advisories)
    print_result(f"{count} {'advisory' if count == 1 else 'advisories'} {_update_text(taken)}")


def _update_text(update: AdvisorySet) -> str:
    commit = f" at {update.commit[:12]}" if update.commit else ""
    signed = f", signed by {update.signed}" if update.signed else ""
    return f"from {update.source}{commit} on {update.taken[:10]}{signed}"


def _affects(advisory: Advisory) -> str:
    return ", ".join(f"{fact} {versions}" for fact, versions in advisory.affects.items())


def _advisory_document(advisory: Advisory, silenced: str | None) -> dict[str, Any]:
    return {**data(advisory, _ADVISORY), **({"silenced": silenced} if silenced else {})}

"""The command line of builder bisect and its subcommands."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from builder import commands
from builder.base import words
from builder.cli.main import Group
from builder.cli.options import Context, json_and_context, json_option, names, pass_context, verbosity_and_context
from builder.cli.output import data, print_json, print_result, styled

_START = "start"


class _WithModel(Group):
    """A group whose first argument is a command, or else the model of a new bisection."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [_START, *args]
        return super().parse_args(ctx, args)


@click.group(cls=_WithModel, subcommand_metavar="MODEL|TARGET [OPTIONS] | COMMAND")
def bisect() -> None:
    """Find the change that broke a model.

    `builder bisect MODEL` searches between the last good number and the number that serves the model now. The command
    first tries the numbers in between. It then finds what changed: base, vLLM, FlashInfer, source patches, Python
    packages, mods, template or recipe. Finally, it finds the commit, pull request, package or flag. If a mod or a
    template is the cause, the command shows its diff.

    --run SCRIPT, --probe NAME, --prove or --same judges each candidate. Without these options, you judge: the command
    serves a candidate, and `builder bisect good`, `bad` or `skip` continues with the next one.

    After ^C, a kill or a restart of the machine, the same command continues the bisection.
    """


@bisect.command(_START)
@click.argument("what", metavar="MODEL|TARGET", shell_complete=names("models", "recipes", "definitions"))
@click.option(
    "--good", type=click.IntRange(1), metavar="N", help="Use N as the good number, instead of the last good one."
)
@click.option("--bad", type=click.IntRange(1), metavar="N", help="Use N as the bad number, instead of the current one.")
@click.option(
    "--run",
    "script",
    type=click.Path(dir_okay=False),
    metavar="SCRIPT",
    help="Judge each candidate by the exit code of SCRIPT: 0 is good, 125 skips, other codes up to 127 are bad.",
)
@click.option(
    "--probe",
    metavar="NAME",
    shell_complete=names("probes"),
    help="Judge each candidate with this probe. The probe repeats if its results vary.",
)
@click.option("--prove", is_flag=True, help="Judge each candidate with `builder prove`, without a GPU.")
@click.option("--same", is_flag=True, help="Compare each candidate's answers with the answers of the good number.")
@click.option(
    "--machine-differs", is_flag=True, help="Continue even if the machine has changed since the good number worked."
)
@json_option
@verbosity_and_context
def start(
    context: Context,
    /,
    what: str,
    script: str | None,
    probe: str | None,
    prove: bool,
    same: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Begin a bisection, or continue one.

    The command first tries the good and the bad number. SCRIPT gets the variable BUILDER_IMAGE. For a model or a
    recipe, SCRIPT also gets BUILDER_ADDRESS and BUILDER_MODEL of the candidate's server. A candidate whose server does
    not start is skipped, unless the bad number does not start either. Candidates are images named builder-bisect-…; the
    command removes them at the end. The model's own server keeps running. If there is not enough memory for both
    servers, the model's server stops, and starts again at the end.

    If the kernel, the driver or the firmware has changed since the good number worked, the bisection does not begin.
    `builder why MODEL` shows what changed; --machine-differs continues anyway.

    \b
    Ends with
      0  if the change was found, or a candidate is waiting for your verdict
      1  if the change could not be found
    """
    from builder.lab.bisect.search import Judge

    if sum((script is not None, probe is not None, prove, same)) > 1:
        raise click.UsageError("--run, --probe, --prove and --same cannot be combined: choose one")
    if script is not None:
        judge = Judge("script", str(Path(script).absolute()))
    else:
        judge = Judge("probe", probe) if probe is not None else Judge("prove" if prove else "same" if same else "user")
    with context.working() as workspace:
        result = commands.bisecting.bisect_images(workspace, what, judge, **options)
    return _print(result, as_json=as_json)


@bisect.command()
@json_and_context
def status(context: Context, as_json: bool) -> None:
    """Show the progress of the bisection, and the candidates tried so far."""
    state = commands.bisecting.bisection_status(context.workspace())
    waiting = state.bisection.waiting is not None
    if as_json:
        keys = "target=bisection.target started=bisection.started tried next? steps_left seconds_left"
        print_json({**data(state, keys), "waiting": waiting})
        return
    first, last = state.bisection.ends
    ends = f"{first.repository} {first.number} to {last.number}"
    print_result(f"bisection of {state.bisection.target}, {ends}, begun {state.bisection.started}")
    for line in state.tried:
        print_result(f"  {line}", hanging=4)
    took = f", {words.duration_text(state.seconds_left)}" if state.seconds_left else ""
    left = f"about {words.counted(state.steps_left, 'step')} to go{took}"
    print_result(f"  next: {state.next or 'a candidate in between'}; {left}")
    if waiting:
        print_result("  waiting for your verdict: `builder bisect good`, `bad` or `skip`")


@bisect.command()
@pass_context
def stop(context: Context) -> None:
    """Stop the bisection, serve the model as before, and remove the candidates."""
    count = commands.bisecting.stop_bisection(context.workspace())
    print_result(f"stopped; removed {words.counted(count, 'candidate')}")


def _mark(word: Literal["good", "bad", "skip"], summary: str) -> None:
    @bisect.command(word, help=summary)
    @click.option("--note", default="", metavar="TEXT", help="Record this reason with the verdict.")
    @json_option
    @verbosity_and_context
    def mark(context: Context, note: str, as_json: bool) -> int:
        with context.working() as workspace:
            result = commands.bisecting.mark_bisection(workspace, word, note)
        return _print(result, as_json=as_json)


_mark("good", "Mark the candidate as good, and continue.")
_mark("bad", "Mark the candidate as bad, and continue.")
_mark("skip", "Skip the candidate because it cannot be judged, and continue.")


# The end of a bisection as text and as JSON.

_SHOWN_FILES, _SHOWN_LINES = 5, 40
_CULPRIT = (
    "axis unit good? bad? between title=commit.title author=commit.author date=commit.date files=commit.files "
    "change? now?"
)


def _print(report: commands.bisecting.BisectReport, *, as_json: bool) -> int:
    conclusion = report.conclusion
    if not as_json:
        _print_report(report)
    else:
        print_json(
            {
                **data(report.bisection, "target repository numbers"),
                "result": "waiting" if report.look else conclusion.ending if conclusion else None,
                "why": report.problem.splitlines(),
                **data(report, "steps=conclusion.steps"),
                "joint": len(report.culprits) > 1,
                **data(report, f"culprits({_CULPRIT}) machine look(image address?)"),
            }
        )
    return int(bool(report.problem))


def _print_report(report: commands.bisecting.BisectReport) -> None:
    if report.look:
        served = f", served at {report.look.address}" if report.look.address else ""
        print_result(f"judge {styled(report.look.image, bold=True)}{served}")
        print_result("  then `builder bisect good`, `builder bisect bad` or `builder bisect skip`", hanging=4)
        return
    for change in report.machine:
        print_result(f"{styled('the machine has changed', fg='yellow')}: {change}")
    if report.problem or report.conclusion is None:
        first, *rest = report.problem.splitlines()
        print_result(f"{styled('no result', fg='yellow', bold=True)}: {first}")
        for line in rest:
            print_result(f"  {line}", hanging=4)
        return
    units = styled(" and ".join(culprit.unit for culprit in report.culprits), bold=True)
    together = ", which could only be tried together" if len(report.culprits) > 1 else ""
    what = f"{styled(report.bisection.target, bold=True)} was broken by {units}"
    print_result(f"{what}{together}; found in {words.counted(report.conclusion.steps, 'step')}")
    if report.between:
        print_result(f"  the change came between {report.between[0]} and {report.between[1]}", hanging=4)
    for culprit in report.culprits:
        _print_culprit(culprit)


def _print_culprit(culprit: commands.bisecting.FoundCulprit) -> None:
    if commit := culprit.commit:
        print_result(f"  {culprit.unit}: {culprit.bad[:12]} {commit.title}", hanging=4)
        print_result(f"    by {commit.author}, {commit.date[:10]}; the commit before is {culprit.good[:12]}", hanging=6)
        more = f" and {len(commit.files) - _SHOWN_FILES} more" if len(commit.files) > _SHOWN_FILES else ""
        if commit.files:
            print_result(f"    {', '.join(commit.files[:_SHOWN_FILES])}{more}", hanging=6)
    elif culprit.good and culprit.bad:
        print_result(f"  {culprit.unit}: {culprit.good} → {culprit.bad}", hanging=4)
    changed = culprit.change.splitlines()
    for line in changed[:_SHOWN_LINES]:
        print_result(f"    {line}", hanging=6)
    if len(changed) > _SHOWN_LINES:
        print_result(f"    … and {len(changed) - _SHOWN_LINES} more lines: --json shows all", hanging=6)
    if culprit.between:
        skipped = words.counted(len(culprit.between), "commit" if culprit.commit else "version")
        print_result(f"    or an earlier one: {skipped} before it could not be tried", hanging=6)
    if culprit.now:
        print_result(f"  now: {culprit.now}", hanging=4)

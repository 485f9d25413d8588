"""The command line of builder why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from builder.cli.options import Context, json_option, names, pass_context
from builder.cli.output import data, print_json, print_result, styled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.commands.why import WhyReport

_SHOWN_DETAILS = 6


@click.command()
@click.argument("what", metavar="MODEL|RECIPE|SERVER", shell_complete=names("models", "recipes"))
@json_option
@pass_context
def why(context: Context, what: str, as_json: bool) -> None:
    """Show what changed since a model worked last.

    Compares the machine, the image, its mods, the recipe, the template and the weights with the last state that worked
    and differs from now: a start that answered, or a bench or probe that passed. The most likely cause comes first, and
    each cause has its remedy. Nothing is built, started or fetched.
    """
    from builder.commands import why as command

    report = command.explain_change(context.workspace(), what)
    if as_json:
        print_json(_document(report))
        return
    for line, hanging in _lines(report):
        print_result(line, hanging=hanging)


def _document(report: WhyReport) -> dict[str, Any]:
    causes = [
        {"rank": rank, **data(cause, "axis text undo details reasons weight")}
        for rank, cause in enumerate(report.causes, 1)
    ]
    return {
        **data(report, "model image failure? as_now?"),
        "worked": data(report.since, "when how image"),
        "causes": causes,
        "chosen": data(report.chosen, "name before after"),
        "unknown": list(report.unknown),
        "advisories": list(report.advisories),
    }


def _lines(report: WhyReport) -> Iterator[tuple[str, int]]:
    """The lines to print, each with how far it hangs."""
    model = styled(report.model, bold=True)
    if report.failure:
        yield f"the last start says: {report.failure}", 2
    if report.since is None and report.causes:
        yield f"no state in which {model} worked is recorded; known faults of the present state:", 2
        yield from _cause_lines(report)
        return
    if report.since is None:
        yield f"{model} worked at {report.as_now} exactly as it is now, and nothing else is recorded", 2
        return
    if report.as_now:
        yield f"{model} worked at {report.as_now} exactly as it is now; the last state that differs:", 2
    yield f"{model} worked at {report.since.when} on {report.since.image}: {report.since.how}", 2
    yield from _cause_lines(report)
    for change in report.chosen:
        yield f"vLLM chose otherwise: {change}", 2
    for advisory in report.advisories:
        yield f"advisory: {advisory}", 2
    for unknown in report.unknown:
        yield f"not compared: {unknown}", 2


def _cause_lines(report: WhyReport) -> Iterator[tuple[str, int]]:
    for rank, cause in enumerate(report.causes, 1):
        reasons = f" ({'; '.join(cause.reasons)})" if cause.reasons else ""
        yield f"{rank}. {styled(cause.text, bold=True) if rank == 1 else cause.text}{reasons}", 3
        for detail in cause.details[:_SHOWN_DETAILS]:
            yield f"   {detail}", 5
        if len(cause.details) > _SHOWN_DETAILS:
            yield f"   and {len(cause.details) - _SHOWN_DETAILS} more differences", 5
        yield f"   to undo it: {cause.undo}", 5

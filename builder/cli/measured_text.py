"""Measurements as tables and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder import humanize
from builder.cli import table
from builder.cli.output import print_line, print_result
from builder.cli.terminal_text import styled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.commands.bench import KeptOutcome
    from builder.evidence.record import Figure
    from builder.measuring.alternation import ComparedFigure, ComparedNumbers

_COLOURS = {"pass": "green", "fail": "red", "unclear": "yellow", "better": "green", "worse": "red"}
_WORDS = {"pass": "passed", "fail": "failed", "unclear": "unclear"}
# A finding that passed is no fault: it reports what the figures leave out.
_FINDING_WORDS = {**_WORDS, "pass": "note"}
_MOST_FINDINGS = 6


def print_outcome(kept: KeptOutcome, folder: str) -> None:
    """Prints a measurement; ``folder`` is that of the project, which the file of evidence is relative to."""
    outcome = kept.outcome
    verdict = styled(_WORDS.get(outcome.verdict, outcome.verdict), fg=_COLOURS.get(outcome.verdict), bold=True)
    print_result(f"{outcome.name} of {kept.server} from {kept.image}: {verdict} ({humanize.duration(outcome.seconds)})")
    if outcome.counts and outcome.kind == "probe":
        print_result("  " + ", ".join(f"{count} {name}" for name, count in outcome.counts.items()), hanging=4)
    if outcome.figures:
        rows = [(_name(figure.name, figure.at), *_numbers(figure)) for figure in outcome.figures]
        table.print_table(("figure", "mean", "± std", "runs", "unit"), rows)
    for finding in outcome.findings[:_MOST_FINDINGS]:
        place = f" ({finding.at})" if finding.at else ""
        word = _FINDING_WORDS.get(finding.verdict, finding.verdict)
        print_result(f"  {word}: {finding.check}{place}: {finding.text}", hanging=4)
    if len(outcome.findings) > _MOST_FINDINGS:
        print_result(f"  and {len(outcome.findings) - _MOST_FINDINGS} more, see --json")
    if kept.file:
        print_result(f"kept in {str(kept.file).removeprefix(folder).lstrip('/')}")


def print_comparison(compared: ComparedNumbers) -> None:
    """Prints how the second number compares with the first."""
    word = styled(compared.judgement, fg=_COLOURS.get(compared.judgement), bold=True)
    rounds = humanize.counted(compared.rounds, "round")
    print_result(f"{compared.second} against {compared.first}: {word}, by {rounds} of each in turn")
    rows = [(_name(figure.name, figure.at), *_compared(figure)) for figure in compared.figures]
    if rows:
        table.print_table(("figure", "first", "second", "change", "band of noise", "n", "verdict"), rows)
    for failure in compared.failures:
        print_result(f"  failed: {failure}", hanging=4)
    print_line()


def document(kept: KeptOutcome) -> dict[str, Any]:
    """A measurement as JSON."""
    outcome = kept.outcome
    return {
        "server": kept.server,
        "image": kept.image,
        "kind": outcome.kind,
        "name": outcome.name,
        "version": outcome.version,
        "set": outcome.set,
        "started": outcome.started,
        "seconds": round(outcome.seconds, 3),
        "verdict": outcome.verdict,
        "counts": dict(outcome.counts),
        "figures": [_figure(figure) for figure in outcome.figures],
        "findings": [vars(finding) for finding in outcome.findings],
        "file": str(kept.file) if kept.file else None,
    }


def comparison_document(compared: ComparedNumbers) -> dict[str, Any]:
    """A comparison as JSON."""
    return {
        "first": str(compared.first),
        "second": str(compared.second),
        "rounds": compared.rounds,
        "verdict": compared.judgement,
        "failures": list(compared.failures),
        "figures": [
            {
                "name": figure.name,
                "at": dict(figure.at),
                "unit": figure.unit,
                "means": list(figure.means),
                "change": figure.comparison.change,
                "band": [figure.comparison.low, _finite(figure.comparison.high)],
                "values": list(figure.comparison.values),
                "verdict": figure.comparison.verdict,
            }
            for figure in compared.figures
        ],
    }


def _figure(figure: Figure) -> dict[str, Any]:
    return {
        "name": figure.name,
        "at": dict(figure.at),
        "unit": figure.unit,
        "better": figure.better,
        "n": len(figure.values),
        "mean": figure.mean,
        "std": figure.std,
        "values": list(figure.values),
    }


def _name(name: str, at: Mapping[str, int | str]) -> str:
    """A figure with its conditions: tg128 @ d32768 c4, as the community's tables have them."""
    size = at.get(name, "") if name in {"pp", "tg"} else ""
    depth = f" @ d{at['depth']}" if at.get("depth") else ""
    several = f" c{at['concurrency']}" if at.get("concurrency") not in {None, 1} else ""
    share = f" @ {at['share']} %" if "share" in at else ""
    prompt = f" pp{at['pp']}" if name in {"ttfr", "ttft"} and "pp" in at else ""
    return f"{name}{size}{prompt}{depth}{several}{share}"


def _numbers(figure: Figure) -> tuple[str, str, str, str]:
    if figure.unit == "bytes":
        return humanize.size(round(figure.mean)), "", str(len(figure.values)), ""
    spread = _number(figure.std) if len(figure.values) > 1 else ""
    return _number(figure.mean), spread, str(len(figure.values)), figure.unit


def _compared(figure: ComparedFigure) -> tuple[str, ...]:
    comparison = figure.comparison
    high = f"{comparison.high:+.1%}" if _finite(comparison.high) is not None else "?"
    first, second = (_number(mean) for mean in figure.means)
    count = str(min(comparison.values))
    return first, second, f"{comparison.change:+.1%}", f"{comparison.low:+.1%} … {high}", count, comparison.verdict


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"


def _finite(value: float) -> float | None:
    return value if abs(value) < 1e6 else None

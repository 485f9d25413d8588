"""Runs as text: those of an image with their figures, and those of two images side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder import humanize
from builder.cli import standing_text, table, terminal_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.evidence.overview import ImageEvidence, JudgedRun
    from builder.evidence.record import Evidence, Figure
    from builder.evidence.side_by_side import RunPair

_SHOWN_FINDINGS = 5
_VERDICT_COLOURS = {"pass": "green", "changed": "yellow", "fail": "red", "unclear": None}


def standings(evidence: ImageEvidence) -> str:
    """The standing of an image with each of its models, for a fact of `show`."""
    lines = []
    for pairing in evidence.pairings:
        told = f" with {pairing.model}" if pairing.model else ""
        lines.append(f"{standing_text.word(pairing.standing)}{told}" + (f": {pairing.why}" if pairing.why else ""))
    return "\n".join(lines)


def of_image(evidence: ImageEvidence) -> Iterator[str]:
    """The last runs of an image, their figures with their spread, and what did not pass."""
    if evidence.last:
        yield ""
        rows = [(*_run(each.run), " ".join(_remarks(each))) for each in evidence.last]
        yield from _table(("RUN", "VERDICT", "WHEN", "OF"), rows)
    figures = [(each.run, figure) for each in evidence.last for figure in each.run.figures]
    if figures:
        yield ""
        measured = [(f"{run.name}: {_named(figure)}", _mean(figure), _spread(figure)) for run, figure in figures]
        yield from _table(("FIGURE", "MEAN", "SPREAD"), measured)
    for each in evidence.last:
        yield from _findings(each.run)
    for problem in evidence.problems:
        yield f"not counted: {problem}"


def side_by_side(pairs: Sequence[RunPair], names: tuple[str, str]) -> Iterator[str]:
    """The runs of two images beside each other, with the change of each figure."""
    if not pairs:
        return
    rows = [row for pair in pairs for row in _pair_rows(pair)]
    yield from _table(("", *names, ""), rows)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    head, *lines = table.lines(headings, rows, table.width() - 2)
    yield terminal_text.styled(head, bold=True)
    yield from lines


def _run(run: Evidence) -> tuple[str, str, str]:
    return f"{run.kind} {run.name}", _verdict(run), humanize.ago(run.started)


def _verdict(run: Evidence) -> str:
    return terminal_text.styled(run.verdict, fg=_VERDICT_COLOURS.get(run.verdict))


def _remarks(each: JudgedRun) -> Iterator[str]:
    """The model, what was counted, and what is to be known of the run."""
    run = each.run
    told = [run.subject.model or "the image", ", ".join(f"{count:,} {name}" for name, count in run.counts.items())]
    told += [
        f"accepted: {run.accepted}" if run.accepted else "",
        f"stale: {'; '.join(each.stale)}" if each.stale else "",
    ]
    told += [f"not ours: {run.foreign}" if run.foreign else "", _machine(run)]
    yield "; ".join(part for part in told if part)


def _machine(run: Evidence) -> str:
    machine = run.subject.machine
    if machine is None:
        return ""
    gpus = f"{machine.gpus} x {machine.gpu}" if machine.gpus > 1 else machine.gpu
    return f"on {gpus or machine.cpu}" if gpus or machine.cpu else ""


def _named(figure: Figure) -> str:
    at = ", ".join(f"{name} {value}" for name, value in figure.at.items())
    return f"{figure.name} at {at}" if at else figure.name


def _mean(figure: Figure) -> str:
    unit = "" if figure.unit in {"bytes", "ratio"} else figure.unit
    return f"{humanize.amount(figure.mean, figure.unit)} {unit}".rstrip() if figure.values else "-"


def _spread(figure: Figure) -> str:
    count = len(figure.values)
    if count < 2:
        return "of one value" if count else "not measured"
    share = f" ({figure.std / abs(figure.mean):.1%})" if figure.mean else ""
    return f"± {humanize.amount(figure.std, figure.unit)}{share} of {count}"


def _findings(run: Evidence) -> Iterator[str]:
    if not run.findings:
        return
    yield ""
    yield terminal_text.styled(f"{run.kind} {run.name}", bold=True)
    rows = [
        (
            f"  {standing_text.finding_word(finding)}",
            f"{finding.check}, {finding.at}: {finding.text}" if finding.at else finding.text,
        )
        for finding in run.findings[:_SHOWN_FINDINGS]
    ]
    yield from table.lines(("", ""), rows, table.width())[1:]
    if left := len(run.findings) - len(rows):
        yield f"  … and {left} more: --json has them"


def _verdict_of(each: JudgedRun | None) -> str:
    if each is None:
        return "-"
    return ", ".join(
        [_verdict(each.run), *(["stale"] if each.stale else []), *(["not ours"] if each.run.foreign else [])]
    )


def _pair_remarks(pair: RunPair) -> str:
    told = [pair.model or "", f"not comparable: {', '.join(pair.unlike)}" if pair.unlike else ""]
    if pair.goldens:
        told.append(f"{humanize.counted(len(pair.goldens), 'conversation')} with other tokens")
    return "; ".join(part for part in told if part)


def _pair_rows(pair: RunPair) -> Iterator[tuple[str, str, str, str]]:
    yield f"{pair.kind} {pair.name}", _verdict_of(pair.before), _verdict_of(pair.after), _pair_remarks(pair)
    for each in pair.figures:
        change = "" if each.change is None or pair.unlike else f"{each.change:+.1%}"
        unit = "" if each.figure.unit in {"bytes", "ratio"} else each.figure.unit
        remark = ", ".join(part for part in (change, unit) if part) or "-"
        yield f"  {_named(each.figure)}", _beside(each.before), _beside(each.after), remark


def _beside(figure: Figure | None) -> str:
    if figure is None or not figure.values:
        return "-"
    mean = humanize.amount(figure.mean, figure.unit)
    return f"{mean} ± {humanize.amount(figure.std, figure.unit)}" if len(figure.values) > 1 else mean

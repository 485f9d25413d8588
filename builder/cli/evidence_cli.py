"""The command line of builder matrix and builder report, and runs as text for other commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder import commands
from builder.base import words
from builder.cli import output, progress
from builder.cli.options import Context, json_and_context, pass_context, repeated
from builder.cli.output import print_note, print_result

if TYPE_CHECKING:
    from builder.evidence.run_record import Evidence, Figure
    from builder.evidence.standing import CellWord, ImageEvidence, JudgedRun, Matrix, MatrixCell, RunPair


# Runs as text: the runs of one image with their figures, and the runs of two images side by side.

_SHOWN_FINDINGS = 5


def standings(evidence: ImageEvidence) -> str:
    """The standing of an image with each of its models, as text for `show`."""
    lines = []
    for pairing in evidence.pairings:
        told = f" with {pairing.model}" if pairing.model else ""
        lines.append(f"{output.word(pairing.standing)}{told}" + (f": {pairing.why}" if pairing.why else ""))
    return "\n".join(lines)


def of_image(evidence: ImageEvidence) -> Iterator[str]:
    """The last runs of an image, their figures with spread, and their findings."""
    rows = [
        (f"{run.kind} {run.name}", output.word(run.verdict), words.ago_text(run.started), _remarks(each))
        for each in evidence.last
        if (run := each.run)
    ]
    if rows:
        yield from ("", *_table(("RUN", "VERDICT", "WHEN", "DETAILS"), rows))
    measured = []
    for run, figure in ((each.run, figure) for each in evidence.last for figure in each.run.figures):
        mean = f"{words.amount_text(figure.mean, figure.unit)} {_unit(figure)}".rstrip() if figure.values else "-"
        measured.append((f"{run.name}: {_named(figure)}", mean, _spread(figure)))
    if measured:
        yield from ("", *_table(("FIGURE", "MEAN", "SPREAD"), measured))
    for each in evidence.last:
        yield from _findings(each.run)
    for problem in evidence.problems:
        yield f"not counted: {problem}"


def side_by_side(pairs: Sequence[RunPair], names: tuple[str, str]) -> Iterator[str]:
    """The runs of two images side by side, with the change of each figure."""
    if pairs:
        yield from _table(("", *names, ""), [row for pair in pairs for row in _pair_rows(pair)])


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    head, *lines = output.lines(headings, rows, output.width() - 2)
    yield output.styled(head, bold=True)
    yield from lines


def _remarks(each: JudgedRun) -> str:
    """The model, the counts, and remarks on the run."""
    run, machine = each.run, each.run.subject.machine
    place = (machine.gpus_text or machine.cpu) if machine else ""
    parts = (
        run.subject.model or "the image",
        ", ".join(f"{count:,} {name}" for name, count in run.counts.items()),
        f"accepted: {run.accepted}" if run.accepted else "",
        f"stale: {'; '.join(each.stale)}" if each.stale else "",
        f"on {place}" if place else "",
    )
    return "; ".join(filter(None, parts))


def _named(figure: Figure) -> str:
    at = ", ".join(f"{name} {value}" for name, value in figure.at.items())
    return f"{figure.name} at {at}" if at else figure.name


def _unit(figure: Figure) -> str:
    """The unit after an amount; empty for bytes, whose amount contains the unit, and for ratios."""
    return "" if figure.unit in {"bytes", "ratio"} else figure.unit


def _spread(figure: Figure) -> str:
    count = len(figure.values)
    if count < 2:
        return "one value" if count else "not measured"
    share = f" ({figure.std / abs(figure.mean):.1%})" if figure.mean else ""
    return f"± {words.amount_text(figure.std, figure.unit)}{share} of {count}"


def _findings(run: Evidence) -> Iterator[str]:
    if not run.findings:
        return
    yield ""
    yield output.styled(f"{run.kind} {run.name}", bold=True)
    rows = []
    for finding in run.findings[:_SHOWN_FINDINGS]:
        text = f"{finding.check}, {finding.at}: {finding.text}" if finding.at else finding.text
        rows.append((f"  {output.finding_word(finding)}", text))
    yield from output.lines(("", ""), rows, output.width())[1:]
    if left := len(run.findings) - len(rows):
        yield f"  … and {left} more: --json shows them"


def _verdict_of(each: JudgedRun | None) -> str:
    if each is None:
        return "-"
    return output.word(each.run.verdict) + (", stale" if each.stale else "")


def _pair_rows(pair: RunPair) -> Iterator[tuple[str, str, str, str]]:
    unlike = f"not comparable: {', '.join(pair.unlike)}" if pair.unlike else ""
    others = f"{words.counted(len(pair.goldens), 'conversation')} with different tokens" if pair.goldens else ""
    remarks = "; ".join(filter(None, (pair.model, unlike, others)))
    yield f"{pair.kind} {pair.name}", _verdict_of(pair.before), _verdict_of(pair.after), remarks
    for each in pair.figures:
        change = "" if each.change is None or pair.unlike else f"{each.change:+.1%}"
        remark = ", ".join(filter(None, (change, _unit(each.figure)))) or "-"
        yield f"  {_named(each.figure)}", _beside(each.before), _beside(each.after), remark


def _beside(figure: Figure | None) -> str:
    if figure is None or not figure.values:
        return "-"
    mean = words.amount_text(figure.mean, figure.unit)
    return f"{mean} ± {words.amount_text(figure.std, figure.unit)}" if len(figure.values) > 1 else mean


@click.command()
@repeated(
    "--models",
    metavar="MODEL,…",
    kinds="models recipes",
    help="Show only these models.",
)
@repeated(
    "--images",
    metavar="IMAGE,…",
    kinds="numbered definitions",
    help="Show only these numbers, or all numbers of a repository or definition.",
)
@json_and_context
def matrix(context: Context, models: tuple[str, ...], images: tuple[str, ...], as_json: bool) -> None:
    """Show which image goes with which model.

    The table has a row for each number and a column for each model. A cell shows the result of this project's last
    proof; the rows below show each benchmark, probe and comparison. A result is proven, changed, failed, stale, unclear
    or never tried. --json names the file of each run.

    If a proof is missing or stale, the last line shows the command that proves a pair.
    """
    with progress.showing("reading the runs"):
        table = commands.listing.matrix_of(context.workspace(), _split(models), _split(images))
    if as_json:
        output.print_json(table)
    else:
        print_matrix(table)


def _split(texts: tuple[str, ...]) -> tuple[str, ...]:
    """The names in an option that may be repeated, or that may contain commas."""
    return tuple(name for text in texts for name in text.split(",") if name)


# Short words, so that ten models fit into 80 columns.
_SHORT: dict[CellWord, str] = {
    "proven": "ok",
    "changed": "diff",
    "failed": "fail",
    "unclear": "?",
    "stale": "old",
    "never tried": "-",
}


def print_matrix(matrix: Matrix) -> None:
    """Prints the table in blocks of as many models as fit, then the models' names for the column letters."""
    if not matrix.images or not matrix.models:
        empty = "no model is paired with an image yet; to pair one: `builder pair MODEL IMAGE:N`"
        print_result(empty if matrix.images else "no images yet; to build the first: `builder build TARGET`")
        return
    letters = [_letter(place) for place in range(len(matrix.models))]
    cells = {(cell.image, cell.model, cell.proof): cell for cell in matrix.cells}
    first = max(map(len, (*map(str, matrix.images), *(f"  {proof}" for proof in matrix.proofs))))
    widest = max(output.columns_of(_shown(cell)) for cell in matrix.cells)
    beside = max(1, (output.width() - first) // (len(output.GAP) + max(widest, len(letters[-1]))))
    for begin in range(0, len(letters), beside):
        models = matrix.models[begin : begin + beside]
        rows = []
        for image in matrix.images:
            for proof in matrix.proofs:
                row = [cells[image, model, proof] for model in models]
                if proof == "prove" or any(cell.run for cell in row):
                    rows.append((str(image) if proof == "prove" else f"  {proof}", *map(_shown, row)))
        output.print_table(("IMAGE", *letters[begin : begin + beside]), rows)
        output.print_line()
    output.print_facts(list(zip(letters, matrix.models, strict=True)))
    output.print_line()
    counts = ", ".join(f"{count:,} {word} ({_SHORT[word]})" for word, count in matrix.counts().items() if count)
    pairs = words.counted(len(matrix.images) * len(matrix.models), "pair")
    each = f" with {len(matrix.proofs)} proofs each" if len(matrix.proofs) > 1 else ""
    print_result(f"of {pairs}{each}: {counts}")
    proofs = (cell for cell in matrix.cells if cell.proof == "prove")
    if any(cell.word in {"never tried", "stale"} for cell in proofs):
        print_result("to prove a missing or stale pair: `builder prove IMAGE:N MODEL`")


def _shown(cell: MatrixCell) -> str:
    return output.word(cell.word, _SHORT[cell.word])


def _letter(place: int) -> str:
    """A, B … Z, AA, AB …"""
    before, last = divmod(place, 26)
    return (_letter(before - 1) if before else "") + chr(ord("A") + last)


_FILE, _FOLDER = "report.html", "report"


@click.command()
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"Write to this file (default: {_FILE}), or with --publish to this folder (default: {_FOLDER}).",
)
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@click.option("--publish", is_flag=True, help="Write a folder for a static host: index.html and report.json.")
@click.option("--full", is_flag=True, help="Also show paths, names of machines, and notes.")
@pass_context
def report(context: Context, output: Path | None, opens: bool, publish: bool, full: bool) -> None:
    """Write one page on how well each image serves its models.

    The page is one HTML file without scripts, and fetches nothing. The page first shows what is stale, missing or
    unproven. Then it shows every model with its image, proof, history and figures. At the end it shows which image
    goes with which model, and what changed between the numbers of each image.

    The page is made only from images.lock, builds/ and evidence/. It lists upstream commits if this machine has them.
    It shows paths, names of machines and notes only with --full.
    """
    target = output or Path(_FOLDER if publish else _FILE)
    with progress.showing("writing the page"):
        files = commands.listing.write_report(context.workspace(), target, publish=publish, full=full)
    for file in files:
        print_result(str(file))
    if opens:
        import webbrowser

        if not webbrowser.open(files[0].resolve().as_uri()):
            print_note(f"no browser could be started; open {files[0]} yourself")

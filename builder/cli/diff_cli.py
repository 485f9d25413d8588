"""The command line of builder diff and builder why: changes between two images, and changes since a model worked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from builder import commands
from builder.base import words
from builder.cli import evidence_cli, output
from builder.cli.options import Context, json_and_context, names, repeated
from builder.cli.output import data, print_json, print_line, print_message, print_result, styled

if TYPE_CHECKING:
    from builder.lab.changes import ComparedImage, FileChange, PackageChange, UpstreamCommits
    from builder.lock.model import NumberedImage, Pairing, Version
    from builder.sources.mirror import CommitRange


SHOWN_COMMITS = 20
MANY = 1_000_000


@click.command()
@click.argument("before", metavar="A", shell_complete=names("numbered", "definitions"))
@click.argument("after", metavar="B", shell_complete=names("numbered", "definitions"))
@click.option("--grep", default="", metavar="TEXT", help="Show only upstream commits with TEXT in their message.")
@repeated("--path", "paths", metavar="PATH", help="Show only upstream commits that change PATH. Repeatable.")
@click.option("--full", is_flag=True, help="Do not shorten long lists.")
@json_and_context
def diff(
    context: Context, before: str, after: str, grep: str, paths: tuple[str, ...], full: bool, as_json: bool
) -> None:
    """Show what changed between two images.

    A and B are numbered images, such as tf5:6 and tf5:7. A name without a number means the current image. The most
    likely causes come first.
    """
    from builder.sources.mirror import CommitFilter

    commits = CommitFilter(grep, tuple(map(_inside, paths)), MANY if full or as_json else SHOWN_COMMITS)
    images = commands.diff.diff_images(context.project, before, after, commits, print_message)
    lost = commands.diff.recipes_lost(context.workspace(), images)
    if as_json:
        print_json({**_document(images), "recipes": lost})
        return
    for line in chain(
        of_images(images, full=full), _listing(f"parts of recipes that {images.after.name} no longer supports", lost)
    ):
        print_line(line)


def _inside(path: str) -> str:
    """Returns ``path`` relative to the sources. Raises click's error if the path is outside of them."""
    from posixpath import normpath

    normalized = normpath(path)
    if normalized.startswith(("/", "../")) or normalized in ("..", "."):
        raise click.BadParameter(f"`{path}` is not a path within the sources", param_hint="--path")
    return normalized


def _document(difference: commands.diff.ImageDifference) -> dict[str, Any]:
    return {
        "before": _side(difference.before),
        "after": _side(difference.after),
        **data(difference.changes),
        "sources": [
            {**data(each.change), **data(each, "gained lost untold=unknown_reason")} for each in difference.sources
        ],
        "mods": [{**data(each, "name kind"), "files": list(map(_file, each.files))} for each in difference.mods],
        "dockerfiles": list(map(_file, difference.dockerfiles)),
        "chosen": {model: data(changes, "name before after") for model, changes in difference.chosen.items()},
        "unknown": difference.unknown,
        "evidence": data(difference.runs, RUNS),
    }


_SIDE, _FIGURE = "(verdict=run.verdict started=run.started stale)", "(mean std values)"
# The last runs of the same kind and name on both images, with their figures side by side.
RUNS = (
    f"kind name model before{_SIDE} after{_SIDE} unlike other_tokens=goldens figures(name=figure.name at=figure.at "
    f"unit=figure.unit better=figure.better before{_FIGURE} after{_FIGURE} change)"
)


def _side(side: ComparedImage) -> dict[str, Any]:
    pairings = side.pairings.items()
    return {
        "image": side.name,
        **data(side.image, "built status note size platform input_hash? fingerprint"),
        "models": [{"model": name, **data(pairing, "status note")} for name, pairing in pairings],
    }


def _file(file: FileChange) -> dict[str, Any]:
    return {**data(file, "path kind said=note"), "diff": "\n".join(file.lines)}


# Differences as text: one section for each kind. Long sections are shortened.

SHOWN_LINES = 40
SHOWN_PACKAGES = 20
_PACKAGES = {"down": "down", "up": "up", "in": "new", "out": "gone", "other files": "other files"}


def of_images(difference: commands.diff.ImageDifference, *, full: bool) -> Iterator[str]:
    before, after = difference.before, difference.after
    yield from _folded([f"{before.name} → {after.name}"])
    rows = [row for side in (before, after) for row in _rows(side)]
    yield from output.lines(("", "", "", ""), rows, output.width())[1:]
    yield from _folded(f"not compared: {reason}" for reason in difference.unknown)
    if difference.is_same:
        yield "both are the same image, byte for byte"
    elif difference.nothing:
        same = before.image.input_hash == after.image.input_hash != ""
        yield "both were built from the same inputs" if same else "no known difference"
    yield from _sources(difference.sources)
    changed = difference.changes
    patches = (f"{each.source} {each.patch}  {output.word(each.kind)}" for each in changed.patches)
    yield from _listing("source patches", patches)
    for change in difference.mods:
        yield from _section(f"mod {change.name} {output.word(change.kind)}", of_files(change.files, full=full))
    yield from packages("Python packages", changed.packages, full)
    yield from packages("Python packages for building", changed.build_packages, full)
    if changed.base:
        yield from _listing("base", [_image(changed.base.before), f"→ {_image(changed.base.after)}"])
    for file in difference.dockerfiles:
        yield from _section(f"{file.path} {output.word(file.kind)}", [file.note] if file.note else _diff(file, full))
    for model, changes in difference.chosen.items():
        yield from _listing(f"vLLM's own choices for {model}", map(str, changes))
    if difference.runs:
        names = f":{before.name.number}", f":{after.name.number}"
        yield from _section("evidence", evidence_cli.side_by_side(difference.runs, names))
    old, new = before.image.size, after.image.size
    if old != new:
        change_of_size = f"{'+' if new > old else '-'}{words.size_text(abs(new - old))}"
        yield from _section("size", [f"{words.size_text(old)} → {words.size_text(new)} ({change_of_size})"])


def packages(title: str, changes: Sequence[PackageChange], full: bool) -> Iterator[str]:
    if not changes:
        return
    kinds = [change.kind for change in changes]
    counts = ", ".join(f"{kinds.count(kind)} {word}" for kind, word in _PACKAGES.items() if kind in kinds)
    shown = changes if full else changes[:SHOWN_PACKAGES]
    rows = []
    for change in shown:
        versions = " → ".join(dict.fromkeys(filter(None, (change.before, change.after))))
        rows.append((output.word(_PACKAGES[change.kind]), change.name, versions))
    lines = output.lines(("", "", ""), rows, output.width() - 2)[1:]
    if len(shown) < len(changes):
        lines.append(f"… and {len(changes) - len(shown)} more: --full lists them")
    yield from _section(f"{title}: {counts}", lines)


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield ""
    yield from _folded([title])
    yield from (f"  {line}" if line else "" for line in lines)


def _listing(title: str, lines: Iterable[str]) -> Iterator[str]:
    """A section of prose; empty without lines."""
    if folded := list(_folded(lines, indent=2)):
        yield from _section(title, folded)


def _folded(lines: Iterable[str], indent: int = 0) -> Iterator[str]:
    """Folds prose to the width of the terminal. Lines of diffs are never folded."""
    return (folded for line in lines for folded in output.fold(line, output.width() - indent))


def _rows(side: ComparedImage) -> Iterator[tuple[str, ...]]:
    """A row for the image, and a row for each paired model with a different status."""
    image = side.image
    yield f"  {side.name.number}", words.ago_text(image.built), words.size_text(image.size), _marked(image)
    for model, pairing in side.pairings.items():
        if (pairing.status, pairing.note) != (image.status, image.note):
            yield "", "", "", f"{model}: {_marked(pairing)}"


def _marked(record: NumberedImage | Pairing) -> str:
    return output.mark(record.status) + (f": {record.note}" if record.note else "")


def _sources(sources: Sequence[UpstreamCommits]) -> Iterator[str]:
    for source in sources:
        change = source.change
        title = f"{change.name}  {_version(change.before)} → {_version(change.after)}"
        lines = list(_folded([source.unknown_reason], indent=2)) if source.unknown_reason else []
        if source.gained and not (source.lost and not source.gained.total):
            lines += _commits(source.gained, "added")
        if source.lost:
            lines += _commits(source.lost, "removed")
        yield from _section(title, lines)


def _version(version: Version | None) -> str:
    if version is None:
        return "not there"
    return f"{version.version} ({version.commit[:12]})" if version.commit else version.version


def _commits(between: CommitRange, which: str) -> Iterator[str]:
    matching = f", {between.matching} of them shown" if between.matching != between.total else ""
    yield f"{words.counted(between.total, 'upstream commit')} {output.word(which)}{matching}"
    room = output.width() - 4
    for commit in between.commits:
        line = f"{commit.commit[:12]} {commit.date[:10]} {commit.title}"
        yield f"  {line if len(line) <= room else line[: room - 1] + '…'}"
    if left := between.matching - len(between.commits):
        yield f"  … and {left} more: --full lists all, --grep and --path select commits"


def of_files(files: Sequence[FileChange], *, full: bool) -> Iterator[str]:
    for file in files:
        yield from _folded([f"{file.path}: {output.word(file.kind)}{', ' if file.note else ''}{file.note}"], indent=2)
        yield from (f"  {line}" for line in _diff(file, full))


def _diff(file: FileChange, full: bool) -> Iterator[str]:
    shown = file.lines if full else file.lines[:SHOWN_LINES]
    yield from map(output.line, shown)
    if len(shown) < len(file.lines):
        yield f"… and {len(file.lines) - len(shown)} more lines: --full shows them"


def _image(text: str | None) -> str:
    """A base image with its digest shortened."""
    return " ".join(words.short_digest(word) for word in text.split(" ")) if text else "none"


# The why command.

_SHOWN_DETAILS = 6


@click.command()
@click.argument("what", metavar="MODEL|RECIPE|SERVER", shell_complete=names("models", "recipes"))
@json_and_context
def why(context: Context, what: str, as_json: bool) -> None:
    """Show what changed since a model last worked.

    The command compares the machine, image, mods, recipe, template and weights with the last different state that
    worked. A state worked if a server answered, or if a benchmark or probe passed. The most likely cause comes first.
    The command shows how to undo each change. It builds, starts and fetches nothing.
    """
    report = commands.why.explain_change(context.workspace(), what)
    if not as_json:
        _print_why(report)
        return
    causes = (data(cause, "axis text undo details reasons weight") for cause in report.causes)
    print_json(
        {
            **data(report, "model image failure? as_now? worked=since(when how image)"),
            "causes": [{"rank": rank, **cause} for rank, cause in enumerate(causes, 1)],
            **data(report, "chosen(name before after) unknown advisories"),
        }
    )


def _print_why(report: commands.why.WhyReport) -> None:
    model = styled(report.model, bold=True)
    if report.failure:
        print_result(f"the last start reports: {report.failure}")
    if report.since is None:
        print_result(f"{model} worked in exactly this state at {report.as_now}; no other state is recorded")
        return
    if report.as_now:
        print_result(f"{model} worked in exactly this state at {report.as_now}; the last different state:")
    print_result(f"{model} worked at {report.since.when} on {report.since.image}: {report.since.how}")
    for rank, cause in enumerate(report.causes, 1):
        reasons = f" ({'; '.join(cause.reasons)})" if cause.reasons else ""
        print_result(f"{rank}. {styled(cause.text, bold=True) if rank == 1 else cause.text}{reasons}", hanging=3)
        for detail in cause.details[:_SHOWN_DETAILS]:
            print_result(f"   {detail}", hanging=5)
        if len(cause.details) > _SHOWN_DETAILS:
            print_result(f"   and {len(cause.details) - _SHOWN_DETAILS} more differences", hanging=5)
        print_result(f"   to undo it: {cause.undo}", hanging=5)
    for change in report.chosen:
        print_result(f"vLLM's own choice changed: {change}")
    for advisory in report.advisories:
        print_result(f"advisory: {advisory}")
    for unknown in report.unknown:
        print_result(f"not compared: {unknown}")

"""``builder diff``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from builder.cli.completers import names
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json, print_line, print_message

if TYPE_CHECKING:
    from builder.commands.diff import ImageDifference
    from builder.commands.diff_lock import LockDifference
    from builder.comparing.changes import Changes
    from builder.comparing.compared_images import ComparedImage
    from builder.comparing.texts import FileChange
    from builder.comparing.upstream import UpstreamCommits
    from builder.evidence.overview import JudgedRun
    from builder.evidence.record import Figure
    from builder.evidence.side_by_side import RunPair
    from builder.lock.model import Pairing

SHOWN_COMMITS = 20
MANY = 1_000_000


@click.command()
@click.argument("before", metavar="A", shell_complete=names("numbered", "definitions"))
@click.argument("after", metavar="[B]", required=False, shell_complete=names("numbered", "definitions"))
@click.option("--lock", is_flag=True, help="A and B are git revisions of images.lock; without B, the file as it is.")
@click.option("--grep", default="", metavar="TEXT", help="Only upstream commits with TEXT in their message.")
@click.option("--path", "paths", multiple=True, metavar="PATH", help="Only upstream commits that touch PATH.")
@click.option("--full", is_flag=True, help="Show everything, however long.")
@json_option
@pass_context
def diff(
    context: Context,
    before: str,
    after: str | None,
    lock: bool,
    grep: str,
    paths: tuple[str, ...],
    full: bool,
    as_json: bool,
) -> None:
    """Show what changed between two images.

    A and B are numbered images, such as tf5:6 and tf5:7; without a number, the current one. The most probable culprits
    stand first.
    """
    from builder.cli import diff_text
    from builder.sources.git.mirror_reading import CommitFilter

    commits = CommitFilter(grep, tuple(map(_inside, paths)), MANY if full or as_json else SHOWN_COMMITS)
    if lock:
        from builder.commands import diff_lock

        lock_difference = diff_lock.run(context.project, before, after, commits, print_message)
        content, lines = _lock_document(lock_difference), diff_text.of_locks(lock_difference, full=full)
    else:
        from builder.commands import diff as command

        if after is None:
            raise click.UsageError("two images are wanted: `builder diff A B`")
        difference = command.run(context.project, before, after, commits, print_message)
        content, lines = _document(difference), diff_text.of_images(difference, full=full)
    if as_json:
        print_json(content)
        return
    for line in lines:
        print_line(line)


def _inside(path: str) -> str:
    """Returns ``path`` relative to the sources, as git expects it. Raises click's error for one that leads out of
    them."""
    from posixpath import normpath

    normalized = normpath(path)
    if normalized.startswith(("/", "../")) or normalized in ("..", "."):
        raise click.BadParameter(f"`{path}`: a path within the sources is wanted", param_hint="--path")
    return normalized


def _document(difference: ImageDifference) -> dict[str, Any]:
    """The difference between two images as JSON."""
    return {
        "before": _side(difference.before),
        "after": _side(difference.after),
        **_changes(difference.changes, difference.sources),
        "mods": [
            {"name": change.name, "kind": change.kind, "files": [_file(file) for file in change.files]}
            for change in difference.mods
        ],
        "dockerfiles": [_file(file) for file in difference.dockerfiles],
        "args": [asdict(change) for change in difference.args],
        "unknown": list(difference.unknown),
        "evidence": [_runs(pair) for pair in difference.runs],
    }


def _runs(pair: RunPair) -> dict[str, Any]:
    """The last runs of one kind and name on both images as JSON, with their figures side by side."""
    return {
        "kind": pair.kind,
        "name": pair.name,
        "model": pair.model,
        "before": _run(pair.before),
        "after": _run(pair.after),
        "unlike": list(pair.unlike),
        "other_tokens": list(pair.goldens),
        "figures": [
            {
                "name": each.figure.name,
                "at": dict(each.figure.at),
                "unit": each.figure.unit,
                "better": each.figure.better,
                "before": _measured(each.before),
                "after": _measured(each.after),
                "change": each.change,
            }
            for each in pair.figures
        ],
    }


def _run(judged: JudgedRun | None) -> dict[str, Any] | None:
    if judged is None:
        return None
    run = judged.run
    return {"verdict": run.verdict, "started": run.started, "stale": list(judged.stale), "foreign": run.foreign or None}


def _measured(figure: Figure | None) -> dict[str, Any] | None:
    return {"mean": figure.mean, "std": figure.std, "values": list(figure.values)} if figure else None


def _side(side: ComparedImage) -> dict[str, Any]:
    image = side.image
    return {
        "image": str(side.name),
        "built": image.built,
        "status": image.status,
        "note": image.note,
        "size": image.size,
        "platform": image.platform,
        "input_hash": image.input_hash or None,
        "fingerprint": image.fingerprint,
        "models": [
            {"model": name, "status": pairing.status, "note": pairing.note} for name, pairing in side.pairings.items()
        ],
    }


def _changes(changes: Changes, sources: tuple[UpstreamCommits, ...]) -> dict[str, Any]:
    return {**asdict(changes), "sources": [_moved(moved) for moved in sources]}


def _moved(moved: UpstreamCommits) -> dict[str, Any]:
    return {
        **asdict(moved.change),
        "gained": asdict(moved.gained) if moved.gained else None,
        "lost": asdict(moved.lost) if moved.lost else None,
        "untold": moved.unknown_reason,
    }


def _file(file: FileChange) -> dict[str, Any]:
    return {"path": file.path, "kind": file.kind, "said": file.note, "diff": "\n".join(file.lines)}


def _lock_document(difference: LockDifference) -> dict[str, Any]:
    """The difference between two revisions of images.lock as JSON."""
    return {
        "before": difference.before,
        "after": difference.after,
        "pairings": [
            {"model": change.model, "before": _pairing(change.before), "after": _pairing(change.after)}
            for change in difference.pairings
        ],
        "current": [asdict(change) for change in difference.current],
        "pins": [
            {
                "definition": change.definition,
                "platform": change.platform,
                **_changes(change.changes, change.sources),
            }
            for change in difference.pins
        ],
        "numbers": [{**asdict(change), "image": str(change.image)} for change in difference.numbers],
    }


def _pairing(pairing: Pairing | None) -> dict[str, Any] | None:
    return {**asdict(pairing), "image": str(pairing.image)} if pairing else None

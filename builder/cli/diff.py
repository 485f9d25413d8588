"""``builder diff``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json, print_message

if TYPE_CHECKING:
    from builder.commands.diff import ComparedImage, ImageDifference
    from builder.commands.diff_lock import LockDifference
    from builder.comparing.changes import Changes
    from builder.comparing.texts import FileChange
    from builder.comparing.upstream import UpstreamCommits
    from builder.lock.model import Pairing

SHOWN_COMMITS = 20
MANY = 1_000_000


@click.command()
@click.argument("before", metavar="A")
@click.argument("after", metavar="[B]", required=False)
@click.option("--lock", is_flag=True, help="A and B are git revisions of images.lock; without B, the file as it is.")
@click.option("--grep", default="", metavar="TEXT", help="Only upstream commits with TEXT in their message.")
@click.option("--path", "paths", multiple=True, metavar="PATH", help="Only upstream commits that touch PATH.")
@click.option("--full", is_flag=True, help="Leave nothing out, however long it gets.")
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

    wanted = CommitFilter(grep, tuple(map(_inside, paths)), MANY if full or as_json else SHOWN_COMMITS)
    if lock:
        from builder.commands import diff_lock

        between = diff_lock.run(context.project, before, after, wanted, print_message)
        content, lines = _lock_document(between), diff_text.of_locks(between, full=full)
    else:
        from builder.commands import diff as command

        if after is None:
            raise click.UsageError("two images are wanted: `builder diff A B`")
        found = command.run(context.project, before, after, wanted, print_message)
        content, lines = _document(found), diff_text.of_images(found, full=full)
    if as_json:
        print_json(content)
        return
    for line in lines:
        click.echo(line)


def _inside(path: str) -> str:
    """``path`` within the sources, as git wants it. Raises click's error for one that leads out of them."""
    from posixpath import normpath

    found = normpath(path)
    if found.startswith(("/", "../")) or found in ("..", "."):
        raise click.BadParameter(f"`{path}`: a path within the sources is wanted", param_hint="--path")
    return found


def _document(found: ImageDifference) -> dict[str, Any]:
    """The difference between two images for programs."""
    return {
        "before": _side(found.before),
        "after": _side(found.after),
        **_changes(found.changes, found.sources),
        "mods": [
            {"name": change.name, "kind": change.kind, "files": [_file(file) for file in change.files]}
            for change in found.mods
        ],
        "dockerfiles": [_file(file) for file in found.dockerfiles],
        "args": [asdict(change) for change in found.args],
        "unknown": list(found.unknown),
    }


def _side(side: ComparedImage) -> dict[str, Any]:
    image = side.image
    return {
        "image": str(side.name),
        "built": image.built,
        "status": image.status,
        "note": image.note,
        "size": image.size,
        "platform": image.platform,
        "input_hash": image.input_hash,
        "fingerprint": image.fingerprint,
        "models": [{"model": name, "status": one.status, "note": one.note} for name, one in side.pairings.items()],
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


def _lock_document(found: LockDifference) -> dict[str, Any]:
    """The difference between two revisions of images.lock for programs."""
    return {
        "before": found.before,
        "after": found.after,
        "pairings": [
            {"model": change.model, "before": _pairing(change.before), "after": _pairing(change.after)}
            for change in found.pairings
        ],
        "current": [asdict(change) for change in found.current],
        "pins": [
            {
                "definition": change.definition,
                "platform": change.platform,
                **_changes(change.changes, change.sources),
            }
            for change in found.pins
        ],
        "numbers": [{**asdict(change), "image": str(change.image)} for change in found.numbers],
    }


def _pairing(pairing: Pairing | None) -> dict[str, Any] | None:
    return {**asdict(pairing), "image": str(pairing.image)} if pairing else None

"""Differences as people read them: a section for each kind, the first few lines of what is long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder import humanize
from builder.cli import folding, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from builder.commands.diff import ComparedImage, ImageDifference
    from builder.commands.diff_lock import LockDifference, NumberChange, PairingChange, PinChange
    from builder.comparing.changes import Changes, PackageChange, PullChange, ValueChange
    from builder.comparing.texts import FileChange
    from builder.comparing.upstream import UpstreamCommits
    from builder.lock.model import NumberedImage, Pairing, Version
    from builder.sources.git.mirror_reading import CommitRange

SHOWN_LINES = 40
SHOWN_PACKAGES = 20
_PACKAGES = {"down": "down", "up": "up", "in": "new", "out": "gone", "other files": "other files"}


def of_images(found: ImageDifference, *, full: bool) -> Iterator[str]:
    """What differs between two images."""
    before, after = found.before, found.after
    yield from _folded([f"{before.name} → {after.name}"])
    yield from table.lines(("", "", "", ""), [row for side in (before, after) for row in _rows(side)], table.width())[
        1:
    ]
    yield from _folded(f"not looked into: {said}" for said in found.unknown)
    if found.nothing:
        same = before.image.input_hash == after.image.input_hash
        yield "both were built from the same inputs" if same else "no difference is known"
    yield from _sources(found.sources)
    yield from _listing("pull requests", map(_pull, found.changes.pulls))
    for change in found.mods:
        yield from _section(f"mod {change.name} {change.kind}", _files(change.files, full))
    yield from _contents(found.changes, full)
    for file in found.dockerfiles:
        yield from _section(f"{file.path} {file.kind}", _lines(file, full))
    yield from _listing("args", map(_value, found.args))
    if before.image.size != after.image.size:
        yield from _section("size", [_size(before.image.size, after.image.size)])


def of_locks(found: LockDifference, *, full: bool) -> Iterator[str]:
    """What differs between two revisions of images.lock."""
    yield f"images.lock: {found.before} → {found.after}"
    if found.nothing:
        yield "no difference"
    yield from _listing("models", map(_paired, found.pairings))
    yield from _listing("current", map(_value, found.current))
    for change in found.pins:
        yield from _pins(change, full)
    yield from _listing("numbered images", (line for change in found.numbers for line in _number(change)))


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    """The lines below their title, set apart."""
    yield ""
    yield from _folded([title])
    yield from (f"  {line}" if line else "" for line in lines)


def _listing(title: str, lines: Iterable[str]) -> Iterator[str]:
    """A section of prose, where there is any."""
    if listed := list(_folded(lines, indent=2)):
        yield from _section(title, listed)


def _folded(lines: Iterable[str], indent: int = 0) -> Iterator[str]:
    """Lines of prose; those of files, of which diffs are made, are shown as they are."""
    return (folded for line in lines for folded in folding.fold(line, table.width() - indent))


def _rows(side: ComparedImage) -> Iterator[tuple[str, ...]]:
    """An image, and what is said of it for a model alone."""
    image = side.image
    yield f"  {side.name.number}", humanize.ago(image.built), humanize.size(image.size), _marked(image)
    for model, pairing in side.pairings.items():
        if (pairing.status, pairing.note) != (image.status, image.note):
            yield "", "", "", f"{model}: {_marked(pairing)}"


def _marked(what: NumberedImage | Pairing) -> str:
    return what.status + (f": {what.note}" if what.note else "")


def _sources(moved: Sequence[UpstreamCommits]) -> Iterator[str]:
    for one in moved:
        change = one.change
        title = f"{change.name}  {_version(change.before)} → {_version(change.after)}"
        said = list(_folded([one.unknown_reason], indent=2)) if one.unknown_reason else []
        if one.gained and not (one.lost and not one.gained.total):
            said += _commits(one.gained, "that came")
        if one.lost:
            said += _commits(one.lost, "that went")
        yield from _section(title, said)


def _version(version: Version | None) -> str:
    if version is None:
        return "not there"
    return f"{version.version} ({version.commit[:12]})" if version.commit else version.version


def _commits(between: CommitRange, which: str) -> Iterator[str]:
    matching = f", {between.matching} of them asked for" if between.matching != between.total else ""
    yield f"{humanize.counted(between.total, 'upstream commit')} {which}{matching}"
    room = table.width() - 4
    for commit in between.commits:
        line = f"{commit.commit[:12]} {commit.date[:10]} {commit.title}"
        yield f"  {line if len(line) <= room else line[: room - 1] + '…'}"
    if left := between.matching - len(between.commits):
        yield f"  … and {left} more: --full lists them, --grep and --path choose some"


def _pull(change: PullChange) -> str:
    said = {"added": "added", "removed": "removed", "changed": "vendored again: its patch has changed"}
    return f"{change.source} {change.number}  {said[change.kind]}"


def _files(files: Sequence[FileChange], full: bool) -> Iterator[str]:
    for file in files:
        yield from _folded([f"{file.path}: {file.kind}{', ' if file.note else ''}{file.note}"], indent=2)
        yield from (f"  {line}" for line in _diff(file, full))


def _lines(file: FileChange, full: bool) -> Iterator[str]:
    yield from [file.note] if file.note else _diff(file, full)


def _diff(file: FileChange, full: bool) -> Iterator[str]:
    shown = file.lines if full or len(file.lines) <= SHOWN_LINES else file.lines[:SHOWN_LINES]
    # What another file says must not move the cursor or colour the screen.
    yield from ("".join(c if c.isprintable() or c in "\t\n" else "?" for c in line) for line in shown)
    if len(shown) < len(file.lines):
        yield f"… and {len(file.lines) - len(shown)} more lines: --full shows them"


def _contents(changes: Changes, full: bool) -> Iterator[str]:
    yield from _packages("Python packages", changes.packages, full)
    yield from _packages("Python packages for building", changes.build_packages, full)
    yield from _base(changes.base)


def _packages(title: str, packages: Sequence[PackageChange], full: bool) -> Iterator[str]:
    if not packages:
        return
    kinds = [change.kind for change in packages]
    counts = ", ".join(f"{kinds.count(kind)} {word}" for kind, word in _PACKAGES.items() if kind in kinds)
    rows = [(_PACKAGES[change.kind], change.name, _versions(change)) for change in packages]
    shown = rows if full or len(rows) <= SHOWN_PACKAGES else rows[:SHOWN_PACKAGES]
    lines = table.lines(("", "", ""), shown, table.width() - 2)[1:]
    if len(shown) < len(rows):
        lines.append(f"… and {len(rows) - len(shown)} more: --full lists them")
    yield from _section(f"{title}: {counts}", lines)


def _versions(change: PackageChange) -> str:
    if change.before is None or change.after is None or change.before == change.after:
        return change.after or change.before or ""
    return f"{change.before} → {change.after}"


def _base(change: ValueChange | None) -> Iterator[str]:
    if change:
        yield from _listing("base", [_image(change.before), f"→ {_image(change.after)}"])


def _image(text: str | None) -> str:
    """A base image with its digest cut to what people compare."""
    return " ".join(humanize.digest(word) for word in text.split(" ")) if text else "none"


def _value(change: ValueChange) -> str:
    return f"{change.name}: {_said(change.before)} → {_said(change.after)}"


def _said(value: str | None) -> str:
    return "nothing" if value is None else humanize.digest(value)


def _size(before: int, after: int) -> str:
    sign = "+" if after > before else "-"
    return f"{humanize.size(before)} → {humanize.size(after)} ({sign}{humanize.size(abs(after - before))})"


def _paired(change: PairingChange) -> str:
    return f"{change.model}: {_pairing(change.before)} → {_pairing(change.after)}"


def _pairing(pairing: Pairing | None) -> str:
    return f"{pairing.image} {pairing.status}" if pairing else "not paired"


def _pins(change: PinChange, full: bool) -> Iterator[str]:
    yield ""
    yield f"pins of {change.definition} on {change.platform}"
    for line in (
        *_sources(change.sources),
        *_listing("pull requests", map(_pull, change.changes.pulls)),
        *_contents(change.changes, full),
    ):
        if line:
            yield f"  {line}"


def _number(change: NumberChange) -> Iterator[str]:
    yield f"{change.image}  {change.kind}"
    yield from (f"  {_value(value)}" for value in change.values)

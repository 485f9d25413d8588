"""Differences as text: a section for each kind, shortened where it is long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder import humanize
from builder.cli import change_colours, evidence_text, folding, standing_text, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from builder.commands.diff import ImageDifference
    from builder.commands.diff_lock import LockDifference, NumberChange, PairingChange, PinChange
    from builder.comparing.changes import Changes, PackageChange, PullChange, ValueChange
    from builder.comparing.compared_images import ComparedImage
    from builder.comparing.texts import FileChange
    from builder.comparing.upstream import UpstreamCommits
    from builder.lock.model import NumberedImage, Pairing, Version
    from builder.sources.git.mirror_reading import CommitRange

SHOWN_LINES = 40
SHOWN_PACKAGES = 20
_PACKAGES = {"down": "down", "up": "up", "in": "new", "out": "gone", "other files": "other files"}


def of_images(difference: ImageDifference, *, full: bool) -> Iterator[str]:
    """The text of the difference between two images."""
    before, after = difference.before, difference.after
    yield from _folded([f"{before.name} → {after.name}"])
    yield from table.lines(("", "", "", ""), [row for side in (before, after) for row in _rows(side)], table.width())[
        1:
    ]
    yield from _folded(f"not looked into: {reason}" for reason in difference.unknown)
    if difference.is_same:
        yield "nothing differs: both are the same image, byte for byte"
    elif difference.nothing:
        same = before.image.input_hash == after.image.input_hash != ""
        yield "both were built from the same inputs" if same else "no difference is known"
    yield from _sources(difference.sources)
    yield from _listing("pull requests", map(_pull, difference.changes.pulls))
    for change in difference.mods:
        yield from _section(f"mod {change.name} {change_colours.word(change.kind)}", of_files(change.files, full=full))
    yield from _contents(difference.changes, full)
    for file in difference.dockerfiles:
        yield from _section(f"{file.path} {change_colours.word(file.kind)}", _lines(file, full))
    yield from _listing("args", map(_value, difference.args))
    if difference.runs:
        names = f":{before.name.number}", f":{after.name.number}"
        yield from _section("evidence", evidence_text.side_by_side(difference.runs, names))
    if before.image.size != after.image.size:
        yield from _section("size", [_size(before.image.size, after.image.size)])


def of_locks(difference: LockDifference, *, full: bool) -> Iterator[str]:
    """The text of the difference between two revisions of images.lock."""
    yield f"images.lock: {difference.before} → {difference.after}"
    if difference.nothing:
        yield "no difference"
    yield from _listing("models", map(_paired, difference.pairings))
    yield from _listing("current", map(_value, difference.current))
    for change in difference.pins:
        yield from _pins(change, full)
    yield from _listing("numbered images", (line for change in difference.numbers for line in _number(change)))


def packages(title: str, changes: Sequence[PackageChange], full: bool) -> Iterator[str]:
    """The text of changed packages, none where there are none."""
    if not changes:
        return
    kinds = [change.kind for change in changes]
    counts = ", ".join(f"{kinds.count(kind)} {word}" for kind, word in _PACKAGES.items() if kind in kinds)
    rows = [(change_colours.word(_PACKAGES[change.kind]), change.name, _versions(change)) for change in changes]
    shown = rows if full or len(rows) <= SHOWN_PACKAGES else rows[:SHOWN_PACKAGES]
    lines = table.lines(("", "", ""), shown, table.width() - 2)[1:]
    if len(shown) < len(rows):
        lines.append(f"… and {len(rows) - len(shown)} more: --full lists them")
    yield from _section(f"{title}: {counts}", lines)


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    """A section: an empty line, the title, the lines indented."""
    yield ""
    yield from _folded([title])
    yield from (f"  {line}" if line else "" for line in lines)


def _listing(title: str, lines: Iterable[str]) -> Iterator[str]:
    """A section of prose; nothing if it has no lines."""
    if folded := list(_folded(lines, indent=2)):
        yield from _section(title, folded)


def _folded(lines: Iterable[str], indent: int = 0) -> Iterator[str]:
    """Folds lines of prose to the terminal; the lines of files in diffs are never folded."""
    return (folded for line in lines for folded in folding.fold(line, table.width() - indent))


def _rows(side: ComparedImage) -> Iterator[tuple[str, ...]]:
    """The row of an image, and one for each paired model whose status differs from the image's."""
    image = side.image
    yield f"  {side.name.number}", humanize.ago(image.built), humanize.size(image.size), _marked(image)
    for model, pairing in side.pairings.items():
        if (pairing.status, pairing.note) != (image.status, image.note):
            yield "", "", "", f"{model}: {_marked(pairing)}"


def _marked(record: NumberedImage | Pairing) -> str:
    return standing_text.mark(record.status) + (f": {record.note}" if record.note else "")


def _sources(sources: Sequence[UpstreamCommits]) -> Iterator[str]:
    for source in sources:
        change = source.change
        title = f"{change.name}  {_version(change.before)} → {_version(change.after)}"
        lines = list(_folded([source.unknown_reason], indent=2)) if source.unknown_reason else []
        if source.gained and not (source.lost and not source.gained.total):
            lines += _commits(source.gained, "came")
        if source.lost:
            lines += _commits(source.lost, "went")
        yield from _section(title, lines)


def _version(version: Version | None) -> str:
    if version is None:
        return "not there"
    return f"{version.version} ({version.commit[:12]})" if version.commit else version.version


def _commits(between: CommitRange, which: str) -> Iterator[str]:
    matching = f", {between.matching} of them asked for" if between.matching != between.total else ""
    yield f"{humanize.counted(between.total, 'upstream commit')} that {change_colours.word(which)}{matching}"
    room = table.width() - 4
    for commit in between.commits:
        line = f"{commit.commit[:12]} {commit.date[:10]} {commit.title}"
        yield f"  {line if len(line) <= room else line[: room - 1] + '…'}"
    if left := between.matching - len(between.commits):
        yield f"  … and {left} more: --full lists them, --grep and --path choose some"


def _pull(change: PullChange) -> str:
    words = {"changed": "vendored again: its patch has changed"}
    return f"{change.source} {change.number}  {words.get(change.kind) or change_colours.word(change.kind)}"


def of_files(files: Sequence[FileChange], *, full: bool) -> Iterator[str]:
    """The text of the files that differ between two folders."""
    for file in files:
        yield from _folded(
            [f"{file.path}: {change_colours.word(file.kind)}{', ' if file.note else ''}{file.note}"], indent=2
        )
        yield from (f"  {line}" for line in _diff(file, full))


def _lines(file: FileChange, full: bool) -> Iterator[str]:
    yield from [file.note] if file.note else _diff(file, full)


def _diff(file: FileChange, full: bool) -> Iterator[str]:
    shown = file.lines if full or len(file.lines) <= SHOWN_LINES else file.lines[:SHOWN_LINES]
    yield from map(change_colours.line, shown)
    if len(shown) < len(file.lines):
        yield f"… and {len(file.lines) - len(shown)} more lines: --full shows them"


def _contents(changes: Changes, full: bool) -> Iterator[str]:
    yield from packages("Python packages", changes.packages, full)
    yield from packages("Python packages for building", changes.build_packages, full)
    yield from _base(changes.base)


def _versions(change: PackageChange) -> str:
    if change.before is None or change.after is None or change.before == change.after:
        return change.after or change.before or ""
    return f"{change.before} → {change.after}"


def _base(change: ValueChange | None) -> Iterator[str]:
    if change:
        yield from _listing("base", [_image(change.before), f"→ {_image(change.after)}"])


def _image(text: str | None) -> str:
    """A base image with its digest shortened."""
    return " ".join(humanize.digest(word) for word in text.split(" ")) if text else "none"


def _value(change: ValueChange) -> str:
    return f"{change.name}: {change_colours.moved(_value_text(change.before), _value_text(change.after))}"


def _value_text(value: str | None) -> str:
    return "nothing" if value is None else humanize.digest(value)


def _size(before: int, after: int) -> str:
    sign = "+" if after > before else "-"
    return f"{humanize.size(before)} → {humanize.size(after)} ({sign}{humanize.size(abs(after - before))})"


def _paired(change: PairingChange) -> str:
    return f"{change.model}: {change_colours.moved(_pairing(change.before), _pairing(change.after))}"


def _pairing(pairing: Pairing | None) -> str:
    return f"{pairing.image} {standing_text.mark(pairing.status)}" if pairing else "not paired"


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
    yield f"{change.image}  {change_colours.word(change.kind)}"
    yield from (f"  {_value(value)}" for value in change.values)

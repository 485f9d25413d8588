"""The data of the page: models with their history, images with what changed, what asks for attention, and the table.

The same values as `list --json` and `show --json` have; the JSON beside a published page is these records as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from builder.evidence.matrix import CellWord
    from builder.evidence.records import Better, Kind, Verdict
    from builder.evidence.standing import Standing
    from builder.lock.model import Status


FORMAT = 1
Concern = Literal["failed", "bad", "missing", "changed", "stale", "unproven"]
Event = Literal["", "paired", "promoted", "rolled back", "moved"]


@dataclass(frozen=True)
class PageFigure:
    """A figure as evidence has it (`records.Figure`), by mean and standard deviation of ``n`` values."""

    name: str
    at: Mapping[str, int | str]
    unit: str
    better: Better
    mean: float
    std: float
    n: int


@dataclass(frozen=True)
class PageRun:
    """The last run of one kind and name of a model on an image. ``stale`` are the reasons why it counts no more,
    ``foreign`` tells where a run of others came from. ``protocol`` is the same for runs whose figures can be compared;
    ``machine`` says on what they were measured. ``run`` is the name of its file."""

    kind: Kind
    name: str
    verdict: Verdict
    word: CellWord
    stale: tuple[str, ...]
    accepted: str
    foreign: str
    started: str
    seconds: float
    version: str
    protocol: str
    machine: str
    run: str
    figures: tuple[PageFigure, ...]


@dataclass(frozen=True)
class PageStep:
    """An image in the history of a model. ``event`` is how the model came to it from ``origin``, empty of one that only
    was tried; ``place`` is its place in the order of pairings, 0 where it was never paired."""

    image: str
    built: str
    vllm: str
    event: Event
    origin: str
    place: int
    is_now: bool
    status: Status
    note: str
    standing: Standing | None
    runs: tuple[PageRun, ...]


@dataclass(frozen=True)
class PageModel:
    """A model, the image that serves it now, and its history. ``since`` is the earliest day on which that image can
    have been paired: images.lock keeps the order of pairings, and no times. ``template`` is the digest of the chat
    template that the last proof saw."""

    model: str
    image: str
    since: str
    revision: str | None
    recipe: str | None
    template: str | None
    mods: tuple[str, ...]
    status: Status
    note: str
    standing: Standing
    why: str
    history: tuple[PageStep, ...]

    @property
    def now(self) -> PageStep | None:
        """The image that serves it, with its runs."""
        return next((step for step in self.history if step.is_now), None)


@dataclass(frozen=True)
class PageCommit:
    """An upstream commit: its id, and the first line of its message."""

    commit: str
    title: str


@dataclass(frozen=True)
class PageSource:
    """A source that moved. ``total`` upstream commits lie between the two, None where they are not known here; of these
    ``commits`` are the newest. ``compare`` is the address where they can be read."""

    name: str
    before: str
    after: str
    total: int | None
    commits: tuple[PageCommit, ...]
    compare: str


@dataclass(frozen=True)
class PageChange:
    """The changes of an image since the number before it. ``packages`` are told as ``NAME BEFORE → AFTER``, ``mods``
    and ``others`` in words; ``unknown`` says why it cannot be told."""

    since: str
    sources: tuple[PageSource, ...]
    packages: tuple[str, ...]
    mods: tuple[str, ...]
    others: tuple[str, ...]
    unknown: str = ""


@dataclass(frozen=True)
class PageImage:
    """A numbered image, and what is in it: ``versions`` are those of its sources by name, ``packages`` the number of
    its Python packages, None where they are not known, ``witnesses`` the machines that made the same content again."""

    image: str
    repository: str
    number: int
    built: str
    current: bool
    pinned: bool
    pruned: str | None
    adopted: str | None
    definition: str
    platform: str
    size: int
    status: Status
    note: str
    standing: Standing | None
    versions: Mapping[str, str]
    base: str
    mods: tuple[str, ...]
    packages: int | None
    witnesses: int
    models: tuple[str, ...]
    change: PageChange | None


@dataclass(frozen=True)
class PageConcern:
    """A matter that asks for attention: the word, the model or image that it is about, what is wrong, and the command
    that does something about it, empty where there is none."""

    concern: Concern
    subject: str
    image: str
    text: str
    command: str


@dataclass(frozen=True)
class PageCell:
    """A cell of the table that was tried: each proof with its word and the name of its run's file."""

    image: str
    model: str
    proof: str
    word: CellWord
    run: str
    others: CellWord | None


@dataclass(frozen=True)
class PageTable:
    """The table of numbers, models and proofs. Every cell that is not among ``cells`` was never tried."""

    images: tuple[str, ...]
    models: tuple[str, ...]
    proofs: tuple[str, ...]
    cells: tuple[PageCell, ...]


@dataclass(frozen=True)
class ReportPage:
    """The whole page. ``as_of`` is the newest moment in its data, empty where there is none. Only a ``full`` one has
    paths, names of machines and notes."""

    as_of: str
    concerns: tuple[PageConcern, ...]
    models: tuple[PageModel, ...]
    table: PageTable
    images: tuple[PageImage, ...]
    full: bool = False


class Disclosure:
    """The notes and names as a page may show them. A ``full`` page has notes, paths and names of machines; any other
    has none of them. No two of its ``models`` and no two of its ``repositories`` get the same name."""

    def __init__(self, models: Iterable[str] = (), repositories: Iterable[str] = (), *, full: bool = False) -> None:
        self._full = full
        self._names = {} if full else {**_distinct(repositories, _without_host), **_distinct(models, _without_folders)}

    def note(self, text: str) -> str:
        """A text that was written by hand, or that may name a file or a machine."""
        return text if self._full else ""

    def name(self, text: str) -> str:
        """The name of a model, a repository or an image, without the folders or the host of a registry before it."""
        if self._full or text in self._names:
            return self._names.get(text, text)
        repository, colon, rest = text.rpartition(":")
        return f"{self._names[repository]}{colon}{rest}" if repository in self._names else _without_host(text)

    def command(self, text: str) -> str:
        """A command; nothing where it needs a name that the page does not have."""
        return "" if any(name in text and name != shown for name, shown in self._names.items()) else text


def _distinct(names: Iterable[str], short: Callable[[str], str]) -> dict[str, str]:
    """The short name of each; of several that are alike, all but the first get a number."""
    shown: dict[str, str] = {}
    for name in sorted(names):
        alike = sum(short(name) == short(other) for other in shown)
        shown[name] = f"{short(name)} ({alike + 1})" if alike else short(name)
    return shown


def _without_folders(model: str) -> str:
    return model.rstrip("/").rpartition("/")[2] if model.startswith(("/", "~", ".")) else model


def _without_host(image: str) -> str:
    host, slash, rest = image.partition("/")
    return rest if slash and (":" in host or "." in host or host == "localhost") else image

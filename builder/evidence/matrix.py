"""The recorded runs of several images together, and the statements of machines that built a number again.

The project's own runs decide each cell of the table; what others ran is shown beside it, and makes no cell proven.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builder.base import files, records, signatures, words
from builder.base.errors import Location, Problem
from builder.evidence import store
from builder.evidence.run_record import SAME

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from builder.base.project import Project
    from builder.evidence.run_record import Evidence, Figure, Kind
    from builder.evidence.standing import ImageEvidence, JudgedRun
    from builder.lock.model import ImageName, Lock

CellWord = Literal["proven", "changed", "failed", "stale", "unclear", "never tried"]
_NEVER: CellWord = "never tried"
_BY_VERDICT: dict[str, CellWord] = {"pass": "proven", "changed": "changed", "fail": "failed", "unclear": "unclear"}
_KINDS: tuple[Kind, ...] = ("prove", "bench", "probe", "same")
_BEHAVIOUR = "behaviour"


@dataclass(frozen=True)
class MatrixCell:
    """One proof of a model on an image: the path of its run's ``file``, its ``seconds``, and ``why`` it has this word.
    ``others`` and ``others_file`` are of the last run of others."""

    image: ImageName
    model: str
    proof: str
    word: CellWord
    why: str = ""
    file: str = ""
    started: str = ""
    seconds: float = 0.0
    others: CellWord | None = None
    others_file: str = ""


@dataclass(frozen=True)
class Matrix:
    """The table: ``images`` the newest of a repository first, ``proofs`` as ``prove`` or ``bench quick``, and the cells
    that were tried."""

    images: tuple[ImageName, ...]
    models: tuple[str, ...]
    proofs: tuple[str, ...]
    cells: Mapping[tuple[ImageName, str], tuple[MatrixCell, ...]]

    def cell(self, image: ImageName, model: str, proof: str) -> MatrixCell:
        tried = self.cells.get((image, model), ())
        return next((cell for cell in tried if cell.proof == proof), MatrixCell(image, model, proof, _NEVER))

    def counts(self) -> dict[CellWord, int]:
        counts: dict[CellWord, int] = dict.fromkeys((*_BY_VERDICT.values(), "stale"), 0)
        for cell in (cell for tried in self.cells.values() for cell in tried if cell.word != _NEVER):
            counts[cell.word] += 1
        total = len(self.images) * len(self.models) * len(self.proofs)
        return {**counts, _NEVER: total - sum(counts.values())}


def models_of(lock: Lock, evidence: Iterable[ImageEvidence]) -> tuple[str, ...]:
    """The models that images are paired with, and those that one was run with, sorted."""
    run_with = {each.run.subject.model for image in evidence for each in image.last}
    return tuple(sorted({*lock.models, *filter(None, run_with)}))


def build_matrix(
    images: Collection[ImageName], models: Collection[str], evidence: Mapping[ImageName, ImageEvidence]
) -> Matrix:
    by_cell: dict[tuple[ImageName, str], dict[tuple[Kind, str], list[JudgedRun]]] = {}
    proofs: set[tuple[Kind, str]] = {("prove", _BEHAVIOUR)}
    for name in images:
        for each in evidence[name].last if name in evidence else ():
            model, proof = each.run.subject.model, (each.run.kind, each.run.name)
            if model and model in models:
                by_cell.setdefault((name, model), {}).setdefault(proof, []).append(each)
                proofs.add(proof)
    cells = {
        (name, model): tuple(_cell(name, model, *proof, runs) for proof, runs in by_proof.items())
        for (name, model), by_proof in by_cell.items()
    }
    order = sorted(proofs, key=lambda proof: (_KINDS.index(proof[0]), proof[1]))
    return Matrix(tuple(images), tuple(models), tuple(_title(*proof) for proof in order), cells)


def _title(kind: Kind, name: str) -> str:
    """The name of a proof in the table."""
    return kind if (kind, name) in {("prove", _BEHAVIOUR), ("same", SAME)} else f"{kind} {name}"


def word_of(judged: JudgedRun) -> CellWord:
    return "stale" if judged.stale else _BY_VERDICT[judged.run.verdict]


def _cell(image: ImageName, model: str, kind: Kind, name: str, runs: Sequence[JudgedRun]) -> MatrixCell:
    folder = f"evidence/{image.repository}/{image.number}"
    cell = MatrixCell(image, model, _title(kind, name), _NEVER)
    for each in reversed(runs):
        word, file, run = word_of(each), f"{folder}/{each.run.file}", each.run
        if run.foreign:
            cell = replace(cell, others=word, others_file=file)
        else:
            why = "; ".join(each.stale) or run.accepted
            cell = replace(cell, word=word, why=why, file=file, started=run.started, seconds=run.seconds)
    return cell


# The runs of two images side by side: those of the same kind, name and model, and the figures that both measured.


@dataclass(frozen=True)
class FigurePair:
    """One figure of two runs under the same conditions; None where a run has not measured it."""

    before: Figure | None
    after: Figure | None

    @property
    def figure(self) -> Figure:
        return next(filter(None, (self.before, self.after)))

    @property
    def change(self) -> float | None:
        """The change of the mean as a fraction; None where there is nothing to compare."""
        if not (self.before and self.after and self.before.values and self.after.values and self.before.mean):
            return None
        return (self.after.mean - self.before.mean) / abs(self.before.mean)


@dataclass(frozen=True)
class RunPair:
    """The last runs of one kind, name and model on two images. ``unlike`` says what else differs, so that their figures
    cannot be compared; ``goldens`` names the conversations that give other tokens."""

    kind: Kind
    name: str
    model: str | None
    before: JudgedRun | None
    after: JudgedRun | None
    unlike: tuple[str, ...] = ()
    figures: tuple[FigurePair, ...] = ()
    goldens: tuple[str, ...] = ()


def pairs_side_by_side(before: Sequence[JudgedRun], after: Sequence[JudgedRun]) -> tuple[RunPair, ...]:
    """The pairs of two images' last runs; the project's own go before those of others."""
    old, new = _by_name(before), _by_name(after)
    return tuple(_pair(key, old.get(key), new.get(key)) for key in dict.fromkeys([*old, *new]))


def _by_name(runs: Sequence[JudgedRun]) -> dict[tuple[Kind, str, str | None], JudgedRun]:
    named: dict[tuple[Kind, str, str | None], JudgedRun] = {}
    for each in sorted(runs, key=lambda judged: bool(judged.run.foreign)):
        named.setdefault((each.run.kind, each.run.name, each.run.subject.model), each)
    return named


def _pair(key: tuple[Kind, str, str | None], before: JudgedRun | None, after: JudgedRun | None) -> RunPair:
    if before is None or after is None:
        return RunPair(*key, before, after)
    old, new = before.run, after.run
    unlike = tuple(_unlike(old, new))
    by_place = [{(each.name, each.unit, *sorted(each.at.items())): each for each in run.figures} for run in (old, new)]
    places = dict.fromkeys(place for figures in by_place for place in figures)
    pairs = tuple(FigurePair(*(figures.get(place) for figures in by_place)) for place in places)
    goldens = tuple(sorted(c for c, ids in old.goldens.items() if new.goldens.get(c, ids) != ids)) if not unlike else ()
    return RunPair(*key, before, after, unlike, pairs, goldens)


def _unlike(old: Evidence, new: Evidence) -> Iterator[str]:
    if old.set != new.set:
        sets = {"prove": "other conversations", "bench": "another profile", "same": "other texts"}
        yield sets.get(old.kind, "another probe")
    if old.version != new.version:
        yield f"{old.version} and {new.version}"
    if old.subject.machine != new.subject.machine:
        yield "another machine"
    if dict(old.sampling) != dict(new.sampling):
        yield "other sampling"
    if dict(old.subject.overrides) != dict(new.subject.overrides):
        yield "other options in the command"


# Statements that a machine built a number again and got the same content: ``evidence/REPOSITORY/N/witnesses/``. A
# statement names its machine by a digest alone, so that two of one machine count once. It is signed where the owner
# names an SSH key (``ssh-keygen -Y sign``); https://man.openbsd.org/ssh-keygen.

FOLDER = "witnesses"
_NAMESPACE = "builder-witness"
_LARGEST = 64 << 10
_FILE = re.compile(r"[0-9a-f]{16}\.json")
_MACHINE_ID = Path("/etc/machine-id")


@dataclass(frozen=True)
class Witness:
    """One machine's statement that at ``stated`` (RFC 3339) it built ``image`` and got this content; ``digest`` is of
    the manifest."""

    image: str
    fingerprint: str
    digest: str
    machine: str
    platform: str
    versions: Mapping[str, str]
    stated: str


@dataclass(frozen=True)
class Witnesses:
    """The statements about a number, one a machine, of which ``signed`` have a signature that fits."""

    statements: tuple[Witness, ...] = ()
    signed: int = 0
    problems: tuple[Problem, ...] = ()


def state_witness(
    project: Project,
    name: ImageName,
    fingerprint: str,
    digest: str,
    platform: str,
    versions: Mapping[str, str],
    key: Path | None,
) -> Path:
    """Writes this machine's statement, in place of an earlier one, and returns its file; signed with the private SSH
    ``key``, if given. Raises UsageError where that cannot sign."""
    try:
        own = files.read_plain_file(_MACHINE_ID, _LARGEST).strip()
    except OSError:
        own = socket.gethostname().encode()
    machine = sha256(b"builder\0" + own).hexdigest()[:16]
    statement = Witness(str(name), fingerprint, digest, machine, platform, dict(versions), words.now())
    folder = store.evidence_folder(project, name) / FOLDER
    path = folder / f"{machine}.json"
    content = records.text_of(statement, {}).encode()
    signature = signatures.sign(content, key, _NAMESPACE) if key else None
    files.make_folder(folder)
    path.with_suffix(".json.sig").unlink(missing_ok=True)
    files.write_atomically(path, content)
    if signature:
        files.write_atomically(path.with_suffix(".json.sig"), signature)
    return path


def read_statements(project: Project, name: ImageName, fingerprint: str) -> Witnesses:
    """The statements about a number with this content. One of other content, or whose signature does not fit, is a
    problem."""
    folder = store.evidence_folder(project, name) / FOLDER
    statements, problems, signed = [], [], 0
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        shown = Location(f"evidence/{name.repository}/{name.number}/{FOLDER}/{path.name}")
        try:
            content = files.read_plain_file(path, _LARGEST)
            statement = records.parse(content, Witness)
        except (OSError, records.RecordError) as error:
            problems.append(Problem(shown, f"it is no statement of a witness: {error}"))
            continue
        if not _FILE.fullmatch(path.name) or statement.image != str(name) or statement.machine != path.stem:
            problems.append(Problem(shown, f"it is not about {name}, or not under the name of its machine"))
        elif statement.fingerprint != fingerprint:
            problems.append(Problem(shown, f"it is about other content than images.lock: {statement.fingerprint}"))
        elif (fits := signatures.fits(path.with_suffix(".json.sig"), content, _NAMESPACE)) is False:
            problems.append(Problem(shown, "its signature does not fit: the statement was changed after it was signed"))
        else:
            statements.append(statement)
            signed += fits is True
    return Witnesses(tuple(statements), signed, tuple(problems))

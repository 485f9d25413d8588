"""This page collects the data of the report from a project's files.

Matters that require attention come first, then the images, the models, and the whole collection.
The sources are images.lock, build directories, evidence, and the recipes that these name.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, get_args

from builder.base import words
from builder.base.errors import FileProblemsError, SourceError, UnsafePathError
from builder.base.events import Message
from builder.evidence import matrix, requirements, standing
from builder.evidence.matrix import word_of
from builder.lab.compare import changes
from builder.lab.measure import probes
from builder.lab.report.page import (
    Concern,
    Disclosure,
    PageCell,
    PageChange,
    PageCommit,
    PageConcern,
    PageFigure,
    PageImage,
    PageModel,
    PageRun,
    PageSource,
    PageStep,
    PageTable,
    ReportPage,
)
from builder.lock import lock_file
from builder.lock.model import ImageName, Pairing
from builder.sources import mirror

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from builder.base.events import Report
    from builder.base.project import Project
    from builder.evidence.matrix import Matrix, MatrixCell
    from builder.evidence.records import Evidence, Machine
    from builder.evidence.standing import ImageEvidence, JudgedRun, PairingStanding
    from builder.lab.compare.changes import Changes, ComparedImage, PackageChange, SourceChange
    from builder.lab.report.page import Event
    from builder.lock.model import Lock, Version


# Matters that ask for attention: whatever is failed, bad, missing, changed, stale or unproven of what serves now.

_ORDER: tuple[Concern, ...] = get_args(Concern)
_LISTED = 5


def concerns_of(
    project: Project,
    lock: Lock,
    evidence: Mapping[ImageName, ImageEvidence],
    models: Sequence[PageModel],
    disclosure: Disclosure,
    environ: Mapping[str, str],
) -> tuple[PageConcern, ...]:
    """All of it, the gravest first. ``models`` are those of ``lock``, in the order of their names."""
    concerns = [
        concern
        for name, model in zip(sorted(lock.models), models, strict=True)
        for concern in _of_model(project, lock, name, model, disclosure, environ)
    ]
    concerns += _of_images(project, lock)
    for name, each in evidence.items():
        problems = (disclosure.note(str(problem)) or "a run that cannot be read" for problem in each.problems)
        for problem in dict.fromkeys(problems):
            concerns.append(PageConcern("missing", str(name), str(name), f"not counted: {problem}", "builder verify"))
    named = (_named(concern, disclosure) for concern in concerns)
    return tuple(sorted(named, key=lambda each: _ORDER.index(each.concern)))


def _named(concern: PageConcern, disclosure: Disclosure) -> PageConcern:
    return replace(
        concern,
        subject=disclosure.name(concern.subject),
        image=disclosure.name(concern.image),
        command=disclosure.command(concern.command),
    )


def _of_model(
    project: Project, lock: Lock, name: str, model: PageModel, disclosure: Disclosure, environ: Mapping[str, str]
) -> Iterator[PageConcern]:
    pairing = lock.models[name].pairing
    image = str(pairing.image)
    record = lock.images[pairing.image.repository].numbers[pairing.image.number]
    back = f"builder rollback {name}" if lock.models[name].previous else ""
    if model.status == "bad" or record.status == "bad":
        note = disclosure.note(pairing.note or record.note)
        yield PageConcern("bad", name, image, f"marked bad{f': {note}' if note else ''}", back)
    if record.pruned:
        yield PageConcern("missing", name, image, f"the image that serves it was pruned on {record.pruned[:10]}", "")
    yield from _of_standing(name, image, model, back)
    if lock.models[name].previous and (before := lock.models[name].previous[0]).note.startswith("put back on "):
        text = disclosure.note(before.note) or "the model was put back on the image before"
        yield PageConcern("failed", name, str(before.image), text, f"builder diff {image} {before.image}")
    for run in model.now.runs if model.now else ():
        if run.kind != "prove" and not run.foreign and run.word in {"failed", "stale"}:
            text = f"{run.kind} {run.name}: {'; '.join(run.stale) or 'failed'}"
            command = f"builder {run.kind} {name} {'--profile ' if run.kind == 'bench' else ''}{run.name}"
            yield PageConcern("failed" if run.word == "failed" else "stale", name, image, text, command)
    try:
        for each in requirements.missing(project, lock, pairing.image, name, environ=environ):
            what = disclosure.note(str(each)) or f"{each.kind} {each.name}".strip()
            command = requirements.missing_command(each, pairing.image, name)
            yield PageConcern("failed" if each.failed else "missing", name, image, f"required {what}", command)
    except (FileProblemsError, UnsafePathError) as error:
        first = disclosure.note(error.message.splitlines()[0])
        text = f"what it requires cannot be read{f': {first}' if first else ''}"
        yield PageConcern("missing", name, image, text, "builder recipes check")


def _of_standing(name: str, image: str, model: PageModel, back: str) -> Iterator[PageConcern]:
    prove = f"builder prove {image} {name}"
    if model.standing == "failed":
        yield PageConcern("failed", name, image, model.why or "the last proof failed", back or prove)
    elif model.standing == "changed":
        text = model.why or "answers differ from those of the number before"
        yield PageConcern("changed", name, image, text, f"{prove} --accept")
    elif model.standing == "stale":
        yield PageConcern("stale", name, image, model.why, prove)
    elif model.standing == "unproven":
        yield PageConcern("unproven", name, image, model.why or "never proven on this image", prove)


def _of_images(project: Project, lock: Lock) -> Iterator[PageConcern]:
    """Numbers that nothing can build again, told once for each repository."""
    for repository, record in lock.images.items():
        gone = [
            number
            for number, image in sorted(record.numbers.items(), reverse=True)
            if not image.pruned and not _is_dir(project, repository, number)
        ]
        if gone:
            listed = ", ".join(map(str, gone[:_LISTED])) + (
                f" and {len(gone) - _LISTED} more" if gone[_LISTED:] else ""
            )
            text = f"no build directory of {listed}: these numbers cannot be built again"
            yield PageConcern("missing", repository, "", text, "builder verify")


def _is_dir(project: Project, repository: str, number: int) -> bool:
    try:
        return project.build_directory(repository, number).is_dir()
    except UnsafePathError:
        return False


# The images of the page: what is in each, and what changed since the number before it.

_LISTED_COMMITS = 20
_INCOMPLETE = "only versions and mods can be compared: a build directory is missing, or was adopted"
_FULL_COMMIT = re.compile("[0-9a-f]{40}")
_GITHUB = re.compile(r"https://github\.com/[A-Za-z0-9._-]+/[A-Za-z0-9._-]+?(?:\.git)?/?")


def page_images(
    project: Project,
    lock: Lock,
    names: Collection[ImageName],
    evidence: Mapping[ImageName, ImageEvidence],
    disclosure: Disclosure,
    report: Report,
) -> tuple[PageImage, ...]:
    """The images called ``names``. Upstream commits are those that the project's mirrors have: nothing is fetched."""
    if any((project.mirrors).glob("*.git")):
        report(Message("reading upstream's commits from the mirrors that are here"))
    commits = functools.cache(functools.partial(_commits, project))
    sides: dict[ImageName, ComparedImage | str] = {name: _side(project, lock, name) for name in names}
    return tuple(_image(project, lock, name, sides, evidence, disclosure, commits) for name in names)


def _side(project: Project, lock: Lock, name: ImageName) -> ComparedImage | str:
    """An image to be compared, or the reason why it cannot be."""
    try:
        return changes.compared_image(project, lock, name)[0]
    except (UnsafePathError, FileProblemsError) as error:
        return error.message


def _image(
    project: Project,
    lock: Lock,
    name: ImageName,
    sides: Mapping[ImageName, ComparedImage | str],
    evidence: Mapping[ImageName, ImageEvidence],
    disclosure: Disclosure,
    commits: functools._lru_cache_wrapper[mirror.CommitRange | None],
) -> PageImage:
    repository = lock.images[name.repository]
    record = repository.numbers[name.number]
    side = sides[name]
    own = changes.contents_of(lock, side) if not isinstance(side, str) else None
    has_packages = own is not None and bool(own.packages)
    return PageImage(
        image=disclosure.name(str(name)),
        repository=disclosure.name(name.repository),
        number=name.number,
        built=record.built,
        current=repository.current == name.number,
        pinned=record.pinned,
        pruned=record.pruned,
        adopted=disclosure.name(record.adopted.image) if record.adopted else None,
        definition=record.definition,
        platform=record.platform,
        size=record.size,
        status=record.status,
        note=disclosure.note(record.note),
        standing=evidence[name].standing if name in evidence else None,
        versions={source: _version(version) for source, version in sorted(record.versions.items(), reverse=True)},
        base=disclosure.name(own.base) if own else "",
        mods=tuple(record.mods),
        packages=len(own.packages) if own and has_packages else None,
        witnesses=len(matrix.read_statements(project, name, record.fingerprint).statements),
        models=tuple(map(disclosure.name, lock.models_on(name))),
        change=_change(lock, name, sides, disclosure, commits),
    )


def _change(
    lock: Lock,
    name: ImageName,
    sides: Mapping[ImageName, ComparedImage | str],
    disclosure: Disclosure,
    commits: functools._lru_cache_wrapper[mirror.CommitRange | None],
) -> PageChange | None:
    """The changes since the number before; None of the first one."""
    before = max((number for number in lock.images[name.repository].numbers if number < name.number), default=None)
    if before is None:
        return None
    origin = ImageName(name.repository, before)
    since = disclosure.name(str(origin))
    old, new = sides[origin], sides[name]
    if isinstance(old, str) or isinstance(new, str):
        fault = str(old if isinstance(old, str) else new)
        return PageChange(since, (), (), (), (), disclosure.note(fault) or "a build directory cannot be read")
    if changes.are_same(old, new):
        return PageChange(since, (), (), (), (), "")
    differing = changes.changes_between(*changes.contents_of_both(lock, old, new))
    is_whole = bool(old.directory and new.directory)
    return PageChange(
        since=since,
        sources=tuple(_source(change, commits) for change in differing.sources),
        packages=tuple(map(_package, differing.packages)),
        mods=tuple(_mods(old, new)),
        others=tuple(_others(differing, disclosure)),
        unknown="" if is_whole else _INCOMPLETE,
    )


def _others(differing: Changes, disclosure: Disclosure) -> Iterator[str]:
    if differing.base:
        before, after = (_base(text, disclosure) for text in (differing.base.before, differing.base.after))
        yield f"base image {before} → {after}"
    for pull in differing.pulls:
        yield f"pull request {pull.number} of {pull.source} {pull.kind}"
    if differing.build_packages:
        yield f"{words.counted(len(differing.build_packages), 'package')} to build with"


def _mods(old: ComparedImage, new: ComparedImage) -> Iterator[str]:
    before, after = old.image.mods, new.image.mods
    for name in dict.fromkeys([*after, *before]):
        if before.get(name) != after.get(name):
            yield f"{name} {changes.kind_of(before.get(name), after.get(name))}"


def _package(change: PackageChange) -> str:
    if change.kind == "other files":
        return f"{change.name} {change.after}: other files"
    return f"{change.name} {change.before or 'new'} → {change.after or 'gone'}"


def _base(text: str | None, disclosure: Disclosure) -> str:
    image, _, digest = (text or "none").partition(" ")
    return f"{disclosure.name(image)} {words.short_digest(digest)}".strip()


def _version(version: Version | None) -> str:
    if version is None:
        return ""
    return version.version + (f" ({version.commit[:9]})" if version.commit else "")


def _source(change: SourceChange, commits: functools._lru_cache_wrapper[mirror.CommitRange | None]) -> PageSource:
    old, new = (version.commit or "" if version else "" for version in (change.before, change.after))
    is_exact = old != new and bool(_FULL_COMMIT.fullmatch(old) and _FULL_COMMIT.fullmatch(new))
    between = commits(change.git, old, new) if is_exact and change.git else None
    address = change.git.removesuffix("/").removesuffix(".git") if _GITHUB.fullmatch(change.git) else ""
    return PageSource(
        name=change.name,
        before=_version(change.before),
        after=_version(change.after),
        total=between.total if between else None,
        commits=tuple(PageCommit(each.commit, each.title) for each in between.commits) if between else (),
        compare=f"{address}/compare/{old}...{new}" if address and is_exact else "",
    )


def _commits(project: Project, git: str, old: str, new: str) -> mirror.CommitRange | None:
    try:
        return mirror.commits_present(project.mirrors, git, old, new, _LISTED_COMMITS)
    except SourceError:
        return None


# The models of the page: what serves each now, and its history by numbers, pairings and runs.


def page_models(
    lock: Lock, evidence: Mapping[ImageName, ImageEvidence], disclosure: Disclosure
) -> tuple[PageModel, ...]:
    """Every model that images.lock pairs with an image, sorted."""
    return tuple(_model(lock, model, evidence, disclosure) for model in sorted(lock.models))


def _model(lock: Lock, model: str, evidence: Mapping[ImageName, ImageEvidence], disclosure: Disclosure) -> PageModel:
    record = lock.models[model]
    pairing = record.pairing
    image = lock.images[pairing.image.repository].numbers[pairing.image.number]
    standing = _standing(evidence, pairing.image, model)
    proof = standing.run if standing else None
    paired = (pairing, *record.previous)
    built = (lock.images[each.image.repository].numbers[each.image.number].built for each in paired)
    return PageModel(
        model=disclosure.name(model),
        image=disclosure.name(str(pairing.image)),
        since=max(built)[:10],
        revision=pairing.revision,
        recipe=PurePosixPath(pairing.recipe).stem if pairing.recipe else None,
        template=proof.subject.template if proof else None,
        mods=tuple(image.mods),
        status=pairing.status,
        note=disclosure.note(pairing.note),
        standing=standing.standing if standing else "unproven",
        why=_why(standing, disclosure) if standing else "",
        history=_history(lock, model, evidence, disclosure),
    )


def _why(standing: PairingStanding, disclosure: Disclosure) -> str:
    is_note = standing.run is not None and standing.why == standing.run.accepted
    return disclosure.note(standing.why) if is_note else standing.why


def _history(
    lock: Lock, model: str, evidence: Mapping[ImageName, ImageEvidence], disclosure: Disclosure
) -> tuple[PageStep, ...]:
    """The images that the model was paired or run with, the oldest first."""
    record = lock.models[model]
    order = [*reversed(record.previous), record.pairing]
    places = {pairing.image: place for place, pairing in enumerate(order, 1)}
    ran = {name for name, each in evidence.items() if any(run.run.subject.model == model for run in each.last)}
    names = sorted({*places, *ran}, key=lambda name: (_built(lock, name), name))
    steps = []
    for name in names:
        image = lock.images[name.repository].numbers[name.number]
        place = places.get(name, 0)
        pairing = order[place - 1] if place else Pairing(name)
        origin = order[place - 2].image if place > 1 else None
        standing = _standing(evidence, name, model)
        steps.append(
            PageStep(
                image=disclosure.name(str(name)),
                built=image.built,
                vllm=image.versions["vllm"].version if "vllm" in image.versions else "",
                event=_event(name, origin) if place else "",
                origin=disclosure.name(str(origin)) if origin else "",
                place=place,
                is_now=name == record.pairing.image,
                status=pairing.status,
                note=disclosure.note(pairing.note),
                standing=standing.standing if standing else None,
                runs=_runs(name, model, evidence, disclosure),
            )
        )
    return tuple(steps)


def _built(lock: Lock, name: ImageName) -> str:
    return lock.images[name.repository].numbers[name.number].built


def _event(name: ImageName, origin: ImageName | None) -> Event:
    """The way to an image from the one before it in the order of pairings, which swaps two places in a rollback."""
    if origin is None:
        return "paired"
    if origin.repository != name.repository:
        return "moved"
    return "promoted" if name.number > origin.number else "rolled back"


def _standing(evidence: Mapping[ImageName, ImageEvidence], name: ImageName, model: str) -> PairingStanding | None:
    pairings = evidence[name].pairings if name in evidence else ()
    return next((each for each in pairings if each.model == model), None)


def _runs(
    name: ImageName, model: str, evidence: Mapping[ImageName, ImageEvidence], disclosure: Disclosure
) -> tuple[PageRun, ...]:
    judged = evidence[name].last if name in evidence else ()
    return tuple(_run(each, disclosure) for each in judged if each.run.subject.model == model)


def _run(judged: JudgedRun, disclosure: Disclosure) -> PageRun:
    run = judged.run
    return PageRun(
        kind=run.kind,
        name=run.name,
        verdict=run.verdict,
        word=word_of(judged),
        stale=judged.stale,
        accepted=disclosure.note(run.accepted),
        foreign=(disclosure.note(run.foreign) or "elsewhere") if run.foreign else "",
        started=run.started,
        seconds=run.seconds,
        version=run.version,
        protocol=_protocol(run),
        machine=machine_text(run.subject.machine),
        run=judged.file,
        figures=tuple(
            PageFigure(each.name, dict(each.at), each.unit, each.better, each.mean, each.std, len(each.values))
            for each in run.figures
        ),
    )


def machine_text(machine: Machine | None) -> str:
    """The GPUs of a machine, else its processor; empty where they are not known."""
    if machine is None:
        return ""
    return f"{machine.gpus} x {machine.gpu}" if machine.gpus > 1 else machine.gpu or machine.cpu


def _protocol(run: Evidence) -> str:
    """A digest over what has to be the same for two runs to be compared (`side_by_side`): the set, the tool, the
    machine, the sampling, and options of that run alone."""
    machine = vars(run.subject.machine) if run.subject.machine else None
    parts = [run.kind, run.name, run.set, run.version, machine, dict(run.sampling), dict(run.subject.overrides)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode(errors="replace")).hexdigest()[:12]


# The data of the page, read from images.lock, builds/, evidence/ and the recipes that they name.


def collect_page(project: Project, environ: Mapping[str, str], report: Report, *, full: bool = False) -> ReportPage:
    """Reads all that the page shows; paths, names of machines and notes only where it is to be ``full``. Raises
    LockError where images.lock is lost or cannot be read."""
    lock = lock_file.read_project_lock(project)
    names = newest_first(lock)
    report(Message(f"reading the runs of {words.counted(len(names), 'image')}"))
    evidence = standing.evidence_overview(project, lock, names, environ, probes.present_sets(project))
    every = matrix.build_matrix(names, matrix.models_of(lock, evidence.values()), evidence)
    disclosure = Disclosure(every.models, lock.images, full=full)
    images = page_images(project, lock, names, evidence, disclosure, report)
    models = page_models(lock, evidence, disclosure)
    moments = [record.built for repository in lock.images.values() for record in repository.numbers.values()]
    moments += [each.run.started for image in evidence.values() for each in image.last]
    return ReportPage(
        as_of=max(moments, default=""),
        concerns=concerns_of(project, lock, evidence, models, disclosure, environ),
        models=models,
        table=table_of(every, disclosure),
        images=images,
        full=full,
    )


def newest_first(lock: Lock) -> tuple[ImageName, ...]:
    """All numbers, the newest of each repository first."""
    names = (ImageName(name, number) for name, repository in lock.images.items() for number in repository.numbers)
    return tuple(sorted(names, key=lambda name: (name.repository, -name.number)))


def table_of(every: Matrix, disclosure: Disclosure) -> PageTable:
    """The table of the page."""
    return PageTable(
        images=tuple(disclosure.name(str(image)) for image in every.images),
        models=tuple(map(disclosure.name, every.models)),
        proofs=every.proofs,
        cells=tuple(_cell(cell, disclosure) for tried in every.cells.values() for cell in tried),
    )


def _cell(cell: MatrixCell, disclosure: Disclosure) -> PageCell:
    image, model = disclosure.name(str(cell.image)), disclosure.name(cell.model)
    run = (cell.file or cell.others_file).rpartition("/")[2]
    return PageCell(image, model, cell.proof, cell.word, run, cell.others)

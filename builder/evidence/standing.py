"""The standing of an image with a model sums up its recorded runs in one word.

The reasons for staleness come first, then the runs that count, the standing, the index of runs, and the overview.
The latest own proof decides. Runs of others are shown and never make an image proven.
The index only saves time, and may be deleted.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from builder.base import files
from builder.base.errors import FileProblemsError
from builder.base.hub_cache import is_commit
from builder.evidence import records, store
from builder.evidence.store import KeptEvidence
from builder.evidence.subjects import PresentSubjects, RequiredRuns, ServedFacts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.base.errors import Problem
    from builder.base.project import Project
    from builder.definitions.configuration import RequiredFigure
    from builder.evidence.records import Evidence, Figure, Kind, Machine, Subject
    from builder.lock.model import ImageName, Lock


# The reasons why a run tells nothing of the present any more: parts of its subject that are others now. Its age is no
# reason. A part that was not looked at, then or now, is not compared.

_SHOWN = 12


def stale_reasons(evidence: Evidence, present: Subject, set_now: str | None = None) -> tuple[str, ...]:
    """Each part that is no longer what it was, in words; empty for a run that still counts. ``set_now`` is the digest
    of the conversations, script or profile as they are now, where that is known."""
    return tuple(_reasons(evidence, present, set_now))


def _reasons(evidence: Evidence, present: Subject, set_now: str | None) -> Iterator[str]:
    then = evidence.subject
    if present.fingerprint and then.fingerprint != present.fingerprint:
        yield "the image has other content"
    if then.model and present.model and then.model != present.model:
        yield f"the model is {present.model} now"
    before, now = then.revision or "", present.revision or ""
    if before != now and is_commit(before) and is_commit(now):
        yield f"the model's revision is {now[:_SHOWN]} now, it was {before[:_SHOWN]}"
    if _differ(then.template, present.template):
        yield "the chat template changed"
    if _differ(then.recipe, present.recipe):
        yield f"it is served by {_recipe(present)} now, it was {_recipe(then)}"
    if _differ(then.arguments, present.arguments):
        yield "the recipe's options changed"
    if dict(then.overrides) != dict(present.overrides):
        yield "it ran with other options than the recipe's" if then.overrides else "it ran without these options"
    if then.machine and present.machine:
        yield from _of_machine(then.machine, present.machine)
    if _differ(evidence.set, set_now):
        yield {"prove": "the conversations changed", "bench": "the profile changed"}.get(
            evidence.kind, "the probe changed"
        )


def _recipe(subject: Subject) -> str:
    return PurePosixPath(subject.recipe or "").stem


def _of_machine(then: Machine, now: Machine) -> Iterator[str]:
    if _differ(then.gpu, now.gpu) or (then.gpus and now.gpus and then.gpus != now.gpus):
        yield f"it ran on {_gpus(then)}, which is {_gpus(now)} here"
    if _differ(then.driver, now.driver):
        yield f"the GPU's driver is {now.driver} now, it was {then.driver}"
    if not then.gpu and not now.gpu and _differ(then.cpu, now.cpu):
        yield f"it ran on another processor, {then.cpu}"


def _gpus(machine: Machine) -> str:
    return f"{machine.gpus} x {machine.gpu}" if machine.gpus > 1 else machine.gpu or "no GPU"


def _differ(then: str | None, now: str | None) -> bool:
    """True if both are there and are not the same."""
    return bool(then) and bool(now) and then != now


# The runs of one image that are on record, as what is required is held against them: which of them count.

# Of a run with figures: one that failed measured no image as it is.
_MEASURED = frozenset({"pass", "changed"})
_DEPTH, _CONCURRENCY = "depth", "concurrency"


@dataclass(frozen=True)
class RecordedRuns:
    """The runs of one image, in the order in which they were added, and the subject that one of a kind would have
    now. ``probes`` are the digests of the project's own probes as they are now."""

    image: ImageName
    runs: Sequence[Evidence]
    present: Callable[[Kind], Subject]
    probes: Mapping[str, str] = field(default_factory=dict)


def latest_runs(of_image: RecordedRuns, kind: Kind, wanted: Callable[[Evidence], bool]) -> Evidence | str:
    """The latest run that counts, or why there is none."""
    present = of_image.present(kind)
    of_kind = [run for run in of_image.runs if run.kind == kind and wanted(run) and run.subject.model == present.model]
    own = [run for run in of_kind if not run.foreign]
    if not own:
        return f"only {of_kind[-1].foreign} has run it" if of_kind else "has not been run"
    set_now = of_image.probes.get(own[-1].name) if kind == "probe" else None
    if reasons := stale_reasons(own[-1], present, set_now):
        return f"is stale: {'; '.join(reasons)}"
    return own[-1]


def with_figure(of_image: RecordedRuns, wanted: RequiredFigure) -> tuple[Evidence, ...]:
    """Every benchmark that counts and measured what ``wanted`` speaks of."""
    present = of_image.present("bench")
    return tuple(
        run
        for run in of_image.runs
        if run.kind == "bench"
        and not run.foreign
        and run.verdict in _MEASURED
        and run.subject.model == present.model
        and figures(run, wanted)
        and not stale_reasons(run, present)
    )


def figures(run: Evidence, wanted: RequiredFigure) -> list[Figure]:
    """The figures of a run that ``wanted`` speaks of: of one request at a time, unless it says another number."""
    return [
        figure
        for figure in run.figures
        if figure.name == wanted.name
        and (wanted.depth is None or figure.at.get(_DEPTH, 0) == wanted.depth)
        and figure.at.get(_CONCURRENCY, 1) == (wanted.concurrency or 1)
    ]


# The standing of a numbered image with a model: one word for what its runs tell of it now. The latest proof of the
# project's own decides; what others ran is shown, and never makes a number proven. A run that failed its probe or
# benchmark counts where the pairing requires that one.

Standing = Literal["proven", "changed", "failed", "stale", "unproven"]
WORST_FIRST: tuple[Standing, ...] = ("failed", "changed", "stale", "unproven", "proven")
Requirement: TypeAlias = "tuple[Kind, str]"


@dataclass(frozen=True)
class PairingStanding:
    """The standing of an image with one model (None: the image by itself). ``why`` says it in words, empty where there
    is nothing to add; ``run`` is the one that decided; ``has_foreign`` if there are runs of others."""

    model: str | None
    standing: Standing
    why: str = ""
    run: Evidence | None = None
    has_foreign: bool = False


def standing_of(
    model: str | None,
    runs: Sequence[Evidence],
    present: Callable[[Kind], Subject],
    required: Collection[Requirement] = (),
    sets: Mapping[Requirement, str] | None = None,
) -> PairingStanding:
    """The standing of an image with ``model`` by ``runs``, all those of the image in the order in which they were
    added. ``present`` gives the subject that a run of a kind would have now; ``required`` names the probes and bench
    profiles that count as well, ``sets`` what is known of their sets now, by kind and name."""
    sets = sets or {}
    of_model = [run for run in runs if run.subject.model == model]
    own = [run for run in of_model if not run.foreign]
    foreign = len(own) < len(of_model)
    for kind, name in sorted(required):
        run = latest(own, kind, name)
        if kind != "prove" and run and run.verdict == "fail":
            reasons = stale_reasons(run, present(kind), sets.get((kind, name)))
            if not reasons:
                return PairingStanding(model, "failed", f"{kind} {name} failed", run, foreign)
    served = present("prove").recipe
    proofs = [run for run in own if run.kind == "prove"]
    # A trial with another recipe tells of that recipe: what is known of the one that serves the model stays.
    proof = latest([run for run in proofs if served in {None, run.subject.recipe}] or proofs, "prove")
    if proof is None:
        return PairingStanding(model, "unproven", "proven elsewhere" if foreign else "", None, foreign)
    reasons = stale_reasons(proof, present("prove"), sets.get(("prove", proof.name)))
    if reasons:
        return PairingStanding(model, "stale", "; ".join(reasons), proof, foreign)
    if proof.verdict == "unclear":
        return PairingStanding(model, "unproven", "the last proof came to no verdict", proof, foreign)
    by_verdict: dict[str, Standing] = {"pass": "proven", "changed": "changed", "fail": "failed"}
    return PairingStanding(model, by_verdict[proof.verdict], proof.accepted, proof, foreign)


def latest(runs: Sequence[Evidence], kind: Kind, name: str | None = None) -> Evidence | None:
    """The last of ``runs`` that is of this kind, and of this name where one is given."""
    return next((run for run in reversed(runs) if run.kind == kind and name in {None, run.name}), None)


def worst(standings: Collection[PairingStanding]) -> Standing | None:
    """The standing of an image with several models: the one that asks for attention first; None where there is none."""
    words = {each.standing for each in standings}
    return next((word for word in WORST_FIRST if word in words), None)


# The last runs of every number and the facts of recipes, remembered between commands: reading and checking four
# thousand files takes half a second. The memory is in the state folder, and may vanish. What it tells counts while
# the state of the files that it was made from is the one that was seen: time of change (ctime), size and inode, as in
# git's index.

_LARGEST = 64 * 1024 * 1024
_NOT_REMEMBERED = "a folder that cannot be read, or is a link"
# What makes the facts of recipes and the digests of probes, and reads the runs: another version may do so otherwise.
_PROGRAM = tuple(Path(__file__).parents[1] / part for part in ("evidence", "definitions", "lab/measure"))

SetNow: TypeAlias = "Callable[[Kind, str], str | None]"


class EvidenceIndex:
    """The memory of a project, read once; ``save`` keeps what was learnt meanwhile."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._program = [_state_of_folder(str(folder)) for folder in _PROGRAM]
        remembered = _remembered(_path(project))
        is_ours = remembered.get("program") == self._program
        self._images = _block(remembered, "images") if is_ours else {}
        self._recipes = _block(remembered, "recipes") if is_ours else {}
        self._required = _block(remembered, "required") if is_ours else {}
        self._sets = _block(remembered, "sets") if is_ours else {}
        self._is_changed = False
        self._links = {str(project.root): False}

    def last_runs(self, name: ImageName) -> KeptEvidence:
        """The last run of each kind, name and model of an image, those of others apart, without their results; with the
        problems of files that are no evidence."""
        state = self._state(name)
        if not state:
            return KeptEvidence()
        remembered = _runs(self._images.get(str(name)), state)
        if remembered is not None:
            return remembered
        kept = store.look_for_runs(self._project, name)
        if state != _NOT_REMEMBERED and not kept.problems:
            last = store.last_runs(kept)
            outlines = [records.of_outline(run) for run, _ in last]
            self._images[str(name)] = {"state": state, "runs": outlines, "files": [file for _, file in last]}
            self._is_changed = True
        return kept

    def recipe(self, file: str, environ: Mapping[str, str]) -> ServedFacts | None:
        """The facts of a recipe that images.lock names; None where it is gone, or cannot be read."""
        state = _state_of_file(self._project.root / file)
        entry = self._recipes.get(file)
        if state and isinstance(entry, dict) and entry.get("state") == state:
            try:
                return ServedFacts(**{**entry["facts"], "requires": _requires(entry["facts"]["requires"])})
            except (KeyError, TypeError):
                pass
        from builder.evidence import subjects

        facts = subjects.of_recorded_recipe(self._project, file, environ)
        if state and facts and facts.is_whole:
            self._recipes[file] = {"state": state, "facts": {**vars(facts), "requires": vars(facts.requires)}}
            self._is_changed = True
        return facts

    def required_of(self, model: str | None) -> RequiredRuns:
        """The runs that builder.yaml requires of images for a model; none where it cannot be read, which every command
        that decides by it tells."""
        path = self._project.root / "builder.yaml"
        state = _state_of_file(path)
        if not state:
            return RequiredRuns()
        if self._required.get("state") != state:
            self._required = {"state": state, "models": {}}
        models, key = self._required["models"], model or ""
        try:
            return _requires(models[key])
        except (KeyError, TypeError):
            pass
        from builder.definitions import configuration

        try:
            wanted = configuration.load_configuration(self._project).required_of(model)
        except FileProblemsError:
            return RequiredRuns()
        requires = RequiredRuns(wanted.probes, bool(wanted.figures))
        models[key] = vars(requires)
        self._is_changed = True
        return requires

    def set_now(self, kind: Kind, name: str, sets: SetNow) -> str | None:
        """The digest of a probe or a profile as it is now, by ``sets`` where it may be another than remembered."""
        if kind == "prove":
            return sets(kind, name)
        source = self._project.root / ("builder.yaml" if kind == "bench" else f"probes/{name}")
        state = _state_of_tree(source) if kind == "probe" else repr(_state_of_file(source))
        key = f"{kind} {name}"
        entry = self._sets.get(key)
        if isinstance(entry, dict) and entry.get("state") == state:
            digest = entry.get("digest")
            return digest if isinstance(digest, str) else None
        digest = sets(kind, name)
        self._sets[key] = {"state": state, "digest": digest}
        self._is_changed = True
        return digest

    def save(self) -> None:
        """Keeps what was learnt for the next command."""
        if self._is_changed:
            content = {"program": self._program, "images": self._images, "recipes": self._recipes}
            content |= {"required": self._required, "sets": self._sets}
            files.write_state(_path(self._project), json.dumps(content, separators=(",", ":")).encode())

    def _state(self, name: ImageName) -> str:
        """The state of all files in the folder of an image; empty where there are none."""
        folder = f"{self._project.evidence}/{name.repository}/{name.number}"
        return _NOT_REMEMBERED if self._leads_elsewhere(folder) else _state_of_folder(folder)

    def _leads_elsewhere(self, folder: str) -> bool:
        """True if a link is among the folder and those above it, up to the project's own."""
        if folder not in self._links:
            above = folder.rpartition("/")[0]
            self._links[folder] = Path(folder).is_symlink() or self._leads_elsewhere(above)
        return self._links[folder]


def _path(project: Project) -> Path:
    return project.raw_evidence.parent / "index.json"


def _remembered(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(files.read_plain_file(path, _LARGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _block(data: dict[str, Any], key: str) -> dict[str, Any]:
    block = data.get(key)
    return block if isinstance(block, dict) else {}


def _requires(data: dict[str, Any]) -> RequiredRuns:
    return RequiredRuns(tuple(data["probes"]), bool(data["has_figures"]))


def _runs(entry: Any, state: str) -> KeptEvidence | None:
    """The runs that are remembered of an image; None where its files are others now."""
    try:
        if entry["state"] != state or len(entry["runs"]) != len(entry["files"]):
            return None
        runs = tuple(records.read_outline(run) for run in entry["runs"])
        return KeptEvidence(runs, files=tuple(map(str, entry["files"])))
    except (KeyError, TypeError, AttributeError):
        return None


def _state_of_folder(folder: str) -> str:
    """The state of all files in a folder as text; empty where there are none."""
    try:
        with os.scandir(folder) as entries:
            states = sorted((entry.name, *_state(entry.stat(follow_symlinks=False))) for entry in entries)
    except FileNotFoundError:
        return ""
    except OSError:
        return _NOT_REMEMBERED
    import hashlib

    return hashlib.sha256(repr(states).encode(errors="replace")).hexdigest() if states else ""


def _state_of_tree(folder: Path) -> str:
    """The state of all files below a folder as text; empty where there is none."""
    import hashlib

    states = [
        (name, *_state_of_file(Path(place, name)))
        for place, _, files in os.walk(folder)
        if not place.endswith("__pycache__")
        for name in [place, *files]
    ]
    return hashlib.sha256(repr(sorted(map(repr, states))).encode(errors="replace")).hexdigest() if states else ""


def _state_of_file(path: Path) -> list[int]:
    """The state of a file and of what it may be a link to; empty where there is none."""
    try:
        return [*_state(path.lstat()), *_state(path.stat())]
    except OSError:
        return []


def _state(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_mode, status.st_ino, status.st_size, status.st_ctime_ns


# The evidence of every numbered image of a lock: its runs, and its standing with each model.


@dataclass(frozen=True)
class JudgedRun:
    """A run, and the reasons why it tells nothing of the present any more; none where it does. ``file`` is the name of
    its file."""

    run: Evidence
    stale: tuple[str, ...]
    file: str = ""


@dataclass(frozen=True)
class ImageEvidence:
    """The evidence of one image: its runs in the order in which they were added, its standing with each model that it
    serves or served or was run with, those that it ``serves`` now and ever ``served``, and the problems of files that
    are no evidence. ``last`` are the last runs of each kind, name and model, those of others apart; ``files`` the names
    of the files of ``runs``, in the same order."""

    runs: tuple[Evidence, ...] = ()
    pairings: tuple[PairingStanding, ...] = ()
    serves: frozenset[str] = frozenset()
    served: frozenset[str] = frozenset()
    problems: tuple[Problem, ...] = ()
    last: tuple[JudgedRun, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def standing(self) -> Standing | None:
        """The standing that asks for attention first, of the models that it serves, or else of those that it served, or
        of all; None where nothing was ever run, nor any model paired with it."""
        chosen = self.serves or self.served
        return worst([each for each in self.pairings if each.model in chosen] or self.pairings)

    def standing_with(self, model: str) -> Standing | None:
        """The standing with one model; None where it is not one of ``pairings``."""
        return next((pairing.standing for pairing in self.pairings if pairing.model == model), None)

    @property
    def json(self) -> dict[str, Any]:
        """All of it as JSON data: the runs as their files have them."""
        files = {id(run): file for run, file in zip(self.runs, self.files, strict=True)}
        return {
            "standing": self.standing,
            "pairings": [
                {
                    "model": pairing.model,
                    "standing": pairing.standing,
                    "why": pairing.why,
                    "run": files[id(pairing.run)] if pairing.run else None,
                    "foreign": pairing.has_foreign,
                }
                for pairing in self.pairings
            ],
            "runs": [{"file": files[id(run)], **records.evidence_document(run)} for run in self.runs],
            "problems": [str(problem) for problem in self.problems],
        }


def evidence_glance(
    project: Project, lock: Lock, names: Collection[ImageName], environ: Mapping[str, str], sets: SetNow
) -> dict[ImageName, ImageEvidence]:
    """The same as `of`, by the last runs alone and without their results: quick, however many there are."""
    if not project.evidence.is_dir():
        return {}
    memory = EvidenceIndex(project)
    evidence = _judged(lock, {name: memory.last_runs(name) for name in names}, environ, memory, sets)
    memory.save()
    return evidence


def evidence_overview(
    project: Project, lock: Lock, names: Collection[ImageName], environ: Mapping[str, str], sets: SetNow
) -> dict[ImageName, ImageEvidence]:
    """The evidence of these images of ``lock``; empty where the project has none of any image. ``sets`` gives the
    digest of a probe or a profile as it is now, None where it is not known."""
    if not project.evidence.is_dir():
        return {}
    return _judged(
        lock, {name: store.look_for_runs(project, name) for name in names}, environ, EvidenceIndex(project), sets
    )


def _judged(
    lock: Lock,
    kept: Mapping[ImageName, KeptEvidence],
    environ: Mapping[str, str],
    memory: EvidenceIndex,
    sets: SetNow,
) -> dict[ImageName, ImageEvidence]:
    presents = PresentSubjects(lock, environ, lambda file: memory.recipe(file, environ))
    paired: dict[ImageName, list[str]] = {}
    for model, record in sorted(lock.models.items()):
        for pairing in (record.pairing, *record.previous):
            paired.setdefault(pairing.image, []).append(model)
    serving = {
        name: frozenset(model for model in models if lock.models[model].pairing.image == name)
        for name, models in paired.items()
    }
    required_of = functools.cache(memory.required_of)
    now = {
        (kind, name): memory.set_now(kind, name, sets)
        for kind, name in dict.fromkeys((run.kind, run.name) for each in kept.values() for run in each.runs)
    }
    present_sets = {key: digest for key, digest in now.items() if digest}
    evidence = {}
    for name, each in kept.items():
        by_model: dict[str | None, list[Evidence]] = {model: [] for model in paired.get(name, ())}
        for run in each.runs:
            by_model.setdefault(run.subject.model, []).append(run)
        pairings = tuple(
            standing_of(
                model,
                runs,
                functools.partial(presents.of, name, model),
                _required(each, presents.recorded(name, model), required_of(model)),
                present_sets,
            )
            for model, runs in by_model.items()
        )
        judged = tuple(
            JudgedRun(
                run,
                stale_reasons(run, presents.of(name, run.subject.model, run.kind), now[run.kind, run.name]),
                file,
            )
            for run, file in store.last_runs(each)
        )
        evidence[name] = ImageEvidence(
            runs=each.runs,
            pairings=pairings,
            serves=serving.get(name, frozenset()),
            served=frozenset(paired.get(name, ())),
            problems=each.problems,
            last=judged,
            files=each.files,
        )
    return evidence


def _required(kept: KeptEvidence, facts: ServedFacts | None, of_project: RequiredRuns) -> set[Requirement]:
    """The probes that the recipe and builder.yaml require, and every benchmark where they require a figure."""
    both = [of_project, *([facts.requires] if facts else [])]
    required: set[Requirement] = {("probe", probe) for each in both for probe in each.probes}
    if any(each.has_figures for each in both):
        required |= {("bench", run.name) for run in kept.runs if run.kind == "bench"}
    return required

"""The evidence of every numbered image of a lock: its runs, and its standing with each model."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.evidence import document, staleness, standing, store
from builder.evidence.index import EvidenceIndex
from builder.evidence.present_subjects import PresentSubjects

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from builder.errors import Problem
    from builder.evidence.index import SetNow
    from builder.evidence.present_subjects import RequiredRuns, ServedFacts
    from builder.evidence.record import Evidence
    from builder.evidence.standing import PairingStanding, Standing
    from builder.evidence.store import KeptEvidence
    from builder.lock.model import ImageName, Lock
    from builder.project import Project


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
        return standing.worst([each for each in self.pairings if each.model in chosen] or self.pairings)

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
            "runs": [{"file": files[id(run)], **document.of(run)} for run in self.runs],
            "problems": [str(problem) for problem in self.problems],
        }


def glance(
    project: Project, lock: Lock, names: Collection[ImageName], environ: Mapping[str, str], sets: SetNow
) -> dict[ImageName, ImageEvidence]:
    """The same as `of`, by the last runs alone and without their results: quick, however many there are."""
    if not project.evidence.is_dir():
        return {}
    memory = EvidenceIndex(project)
    evidence = _judged(lock, {name: memory.last_runs(name) for name in names}, environ, memory, sets)
    memory.save()
    return evidence


def of(
    project: Project, lock: Lock, names: Collection[ImageName], environ: Mapping[str, str], sets: SetNow
) -> dict[ImageName, ImageEvidence]:
    """The evidence of these images of ``lock``; empty where the project has none of any image. ``sets`` gives the
    digest of a probe or a profile as it is now, None where it is not known."""
    if not project.evidence.is_dir():
        return {}
    return _judged(lock, {name: store.look(project, name) for name in names}, environ, EvidenceIndex(project), sets)


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
            standing.of(
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
                staleness.reasons(run, presents.of(name, run.subject.model, run.kind), now[run.kind, run.name]),
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


def _required(kept: KeptEvidence, facts: ServedFacts | None, of_project: RequiredRuns) -> set[standing.Requirement]:
    """The probes that the recipe and builder.yaml require, and every benchmark where they require a figure."""
    both = [of_project, *([facts.requires] if facts else [])]
    required: set[standing.Requirement] = {("probe", probe) for each in both for probe in each.probes}
    if any(each.has_figures for each in both):
        required |= {("bench", run.name) for run in kept.runs if run.kind == "bench"}
    return required

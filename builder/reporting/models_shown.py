"""The models of the page: what serves each now, and its history by numbers, pairings and runs."""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from builder.evidence.matrix import word_of
from builder.lock.model import Pairing
from builder.reporting.page import PageFigure, PageModel, PageRun, PageStep

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.evidence.overview import ImageEvidence, JudgedRun
    from builder.evidence.record import Evidence, Machine
    from builder.evidence.standing import PairingStanding
    from builder.lock.model import ImageName, Lock
    from builder.reporting.page import Disclosure, Event


def of(lock: Lock, evidence: Mapping[ImageName, ImageEvidence], disclosure: Disclosure) -> tuple[PageModel, ...]:
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

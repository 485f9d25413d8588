"""The subjects that runs of many images would have now, by facts of recipes that are read once, or remembered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from builder.evidence.record import Subject
from builder.storage import huggingface_cache

if TYPE_CHECKING:
    from builder.evidence.record import Kind
    from builder.lock.model import ImageName, Lock

NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class RequiredRuns:
    """The runs that count beside the last proof: probes by name, and benchmarks where a figure is required."""

    probes: tuple[str, ...] = ()
    has_figures: bool = False


@dataclass(frozen=True)
class ServedFacts:
    """The parts of a subject that a recipe tells: its file, model and revision, the digests of its arguments by the
    kind of run, none where its command cannot be rendered, and that of its template. ``is_whole`` if no other file has
    a part in them. ``requires`` is what the recipe requires."""

    file: str
    model: str | None
    revision: str | None
    arguments: Mapping[Kind, str]
    template: str | None
    is_whole: bool
    requires: RequiredRuns


class PresentSubjects:
    """The subjects that runs of a lock's images would have now. ``read`` gives the facts of a recipe that images.lock
    names, None of one that is gone or cannot be read."""

    def __init__(self, lock: Lock, environ: Mapping[str, str], read: Callable[[str], ServedFacts | None]) -> None:
        self._lock = lock
        self._environ = environ
        self._read = read
        self._facts: dict[str, ServedFacts | None] = {}
        self._subjects: dict[tuple[ImageName, str | None, Kind], Subject] = {}
        self._pairings = {
            (pairing.image, model): pairing
            for model, paired in lock.models.items()
            for pairing in (paired.pairing, *paired.previous)
        }

    def of(self, image: ImageName, model: str | None, kind: Kind) -> Subject:
        """The subject of a run of this kind with the recipe of the pairing."""
        key = (image, model, kind)
        if key not in self._subjects:
            self._subjects[key] = self.with_recipe(image, model, kind, self.recorded(image, model), NOTHING)
        return self._subjects[key]

    def with_recipe(
        self, image: ImageName, model: str | None, kind: Kind, facts: ServedFacts | None, overrides: Mapping[str, str]
    ) -> Subject:
        """The subject of a run of this kind with a recipe of these facts, which were told the ``overrides``."""
        record = self._lock.image(image)
        pairing = self._pairings.get((image, model or ""))
        revision = pairing.revision if pairing else None
        if facts and facts.model == model and facts.revision:
            revision = facts.revision
        if model and revision and not huggingface_cache.is_commit(revision):
            revision = huggingface_cache.revision(self._environ, model, revision) or revision
        return Subject(
            image=str(image),
            fingerprint=record.fingerprint if record else "",
            model=model,
            revision=revision,
            template=facts.template if facts else None,
            recipe=facts.file if facts else pairing.recipe if pairing else None,
            arguments=facts.arguments.get(kind) if facts else None,
            overrides=dict(overrides),
        )

    def recorded(self, image: ImageName, model: str | None) -> ServedFacts | None:
        """The facts of the recipe of a pairing; None where there is none, or it cannot be read."""
        pairing = self._pairings.get((image, model or ""))
        if pairing is None or pairing.recipe is None:
            return None
        if pairing.recipe not in self._facts:
            self._facts[pairing.recipe] = self._read(pairing.recipe)
        return self._facts[pairing.recipe]

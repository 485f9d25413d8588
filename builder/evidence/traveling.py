"""Runs on their way to other machines and back: what goes along with an image, and what is taken of it.

A run of others is checked like any file of theirs, and marked as theirs by whoever takes it: nothing in it can say that
it is the project's own. One that the project has already stays as it is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.errors import FileProblemsError, Location, Problem
from builder.evidence import document, store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.evidence.record import Evidence
    from builder.lock.model import ImageName
    from builder.project import Project

MOST_RUNS = 1000
_LONGEST_ORIGIN = 500


def of_image(project: Project, name: ImageName, fingerprint: str) -> tuple[tuple[Evidence, ...], tuple[Problem, ...]]:
    """The runs that go along with an image of this content, the last ones where there are very many, and the problems
    of files that stay behind."""
    kept = store.look(project, name)
    runs = tuple(run for run in kept.runs if run.subject.fingerprint == fingerprint)
    return runs[-MOST_RUNS:], kept.problems


def files(runs: Sequence[Evidence]) -> dict[str, str]:
    """The texts of runs by the names of their files."""
    return {store.file_name(run): document.text(run) for run in runs}


def read(texts: object, fingerprint: str, shown: str) -> tuple[Evidence, ...]:
    """The runs in texts of others by file name, all of the image with this content. Raises FileProblemsError where one
    is no such run; ``shown`` is what messages call the place."""
    if not isinstance(texts, dict) or len(texts) > MOST_RUNS:
        raise FileProblemsError((Problem(Location(shown), "its evidence is not what this program writes"),))
    return tuple(_read(name, text, fingerprint, shown) for name, text in texts.items())


def take(project: Project, name: ImageName, runs: Sequence[Evidence], origin: str) -> int:
    """Keeps runs of others as such, ``origin`` being where they came from; returns how many were new. Raises OSError,
    UnsafePathError."""
    before = set(_names(project, name))
    for run in runs:
        by_way_of = f"{origin}, before: {run.foreign}" if run.foreign else origin
        store.add(project, name, replace(run, foreign=_cut(by_way_of)))
    return len(set(_names(project, name)) - before)


def _read(name: object, text: object, fingerprint: str, shown: str) -> Evidence:
    if not isinstance(name, str) or not isinstance(text, str):
        raise FileProblemsError((Problem(Location(shown), "its evidence is not what this program writes"),))
    run = store.read(name, text.encode(errors="surrogatepass"), f"{shown}: {name}")
    if run.subject.fingerprint != fingerprint:
        raise FileProblemsError((Problem(Location(shown), f"{name} is evidence of another image"),))
    return run


def _names(project: Project, name: ImageName) -> list[str]:
    return [path.name for path in store.files(store.folder(project, name))]


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_ORIGIN else f"{text[: _LONGEST_ORIGIN - 1]}…"

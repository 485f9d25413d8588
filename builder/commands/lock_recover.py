"""Makes images.lock again after it was lost: from the build directories, the images in the engine, and the registry.

What people and verbs recorded after a build (marks, notes, pins, pairings that moved) stands nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions import configuration
from builder.distribution import registry, registry_recovery
from builder.engine import images
from builder.errors import LockError, NothingToDoError
from builder.events import Message
from builder.lock import lost, reading, sides
from builder.lock.model import ImageName, Lock
from builder.numbered import images_lock, reassembly, recovery_sources
from builder.storage import atomic_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.project import Project
    from builder.workspace import Workspace

_NOWHERE = (
    "marks, notes and pins (`builder pin`) that were set, and pairings that `pair` or `rollback` moved, stand nowhere"
    " else: models are paired with the newest image that was built for them"
)

_ANEW = "nothing tells any more what builds/ was built from: move its folders away, and images.lock begins anew"


@dataclass(frozen=True)
class Recovered:
    """What came of it: the numbers that are on record again; what could not be known; what a person should look at,
    because two places disagree or the registry could not be asked; and the file that holds the damaged lock (empty
    where it was missing or good)."""

    images: tuple[ImageName, ...]
    unknown: tuple[str, ...]
    findings: tuple[str, ...]
    damaged: str


def run(workspace: Workspace) -> Recovered:
    """Writes images.lock where it is missing or damaged; a good one gets the numbers that it lacks, and nothing in it
    changes.

    The current number of a repository is the one that ``latest`` names in the engine, or else in the registry. Raises
    NothingToDoError where nothing is found or nothing is missing; LockError for a lock that is newer than this program,
    or that a merge left unfinished.
    """
    damaged: list[bytes] = []

    def read(content: bytes, file: str) -> Lock:
        try:
            return reading.parse_bytes(content, file)
        except LockError:
            if not sides.is_lost(content, file):
                raise
            damaged.append(content)
            return Lock()

    there = _in_registry(workspace)
    with images_lock.repair(workspace, read) as transaction:
        found = recovery_sources.find(workspace, there.numbers)
        missing = [one for one in found if transaction.lock.image(one.name) is None]
        findings = (
            *there.faults,
            *_disagreeing(transaction.lock, there),
            *(f for one in missing for f in one.findings),
        )
        if not missing:
            hint = _ANEW if lost.is_lost(workspace.project) else ""
            raise NothingToDoError("\n".join((_nothing(bool(found)), *findings)), hint=hint)
        aside = _put_aside(workspace.project, damaged)
        here = recovery_sources.current(workspace.engine, found)
        transaction.commit(reassembly.completed(transaction.lock, missing, {**there.latest, **here}))
        for repository, held in transaction.lock.images.items():
            images_lock.point_latest(workspace.engine, repository, held.current)
    unknown = (
        *(line for one in missing for line in one.unknown),
        *_of_latest(missing, here, there.latest),
        *there.foreign,
        _NOWHERE,
    )
    return Recovered(tuple(one.name for one in missing), unknown, findings, aside)


def _in_registry(workspace: Workspace) -> registry_recovery.RegistryContents:
    address = configuration.load(workspace.project).registry
    if address is None:
        return registry_recovery.RegistryContents()
    workspace.report(Message(f"asking {address} for the numbers that it has"))
    return registry_recovery.query(
        workspace.engine, registry.Registry(address), recovery_sources.repositories(workspace.project)
    )


def _disagreeing(lock: Lock, there: registry_recovery.RegistryContents) -> Iterator[str]:
    """What the registry has otherwise than a good lock records."""
    for name, remote in sorted(there.numbers.items()):
        recorded = lock.image(name)
        if recorded and recorded.fingerprint != images.fingerprint(remote.details):
            yield f"{remote.reference} holds other content than is recorded for {name}: images.lock counts"


def _of_latest(
    missing: Sequence[recovery_sources.RecoverableImage], here: Mapping[str, int], there: Mapping[str, int]
) -> Iterator[str]:
    """Where the registry decided what is current, and where it says something else than this engine."""
    for repository in sorted({one.name.repository for one in missing} & there.keys()):
        named, own = there[repository], here.get(repository)
        if own is None:
            yield f"{repository}:latest is not in this engine: current is {named}, as in the registry"
        elif own != named:
            yield f"{repository}:latest is {own} in this engine and {named} in the registry: current is {own}"


def _nothing(found: bool) -> str:
    if found:
        return "images.lock records every image of this project that is found anywhere: nothing to recover"
    return "neither the engine nor builds/ nor a registry holds an image of this project: nothing to recover"


def _put_aside(project: Project, damaged: list[bytes]) -> str:
    """Keeps the damaged lock: a person may still read something in it."""
    if not damaged:
        return ""
    aside = project.lock.with_name("images.lock.damaged")
    atomic_file.write_alone(aside, damaged[0])
    return project.relative(aside)

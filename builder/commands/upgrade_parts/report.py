"""The report of a finished upgrade: the differences between the two images, and what was measured of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.commands.shared import beside
from builder.commands.upgrade_parts import target
from builder.evidence import store
from builder.lock import reading
from builder.numbered import pointers
from builder.numbered.pointers import PointerMove

if TYPE_CHECKING:
    from builder.evidence.record import Evidence
    from builder.lock.model import ImageName
    from builder.upgrading.steps import Upgrade
    from builder.workspace import Workspace


@dataclass(frozen=True)
class UpgradeReport:
    """A finished upgrade: the ``changes`` between the image before and the candidate, what was measured of both in
    words, and the image that the server is on, empty where none runs."""

    upgrade: Upgrade
    changes: tuple[str, ...]
    measured: tuple[str, ...]
    served: str


def made(workspace: Workspace, upgrade: Upgrade) -> UpgradeReport:
    """The report of ``upgrade``, with the image that its server is on now."""
    server = beside.server_of(workspace, target.recipe_of_target(workspace, upgrade))
    return UpgradeReport(
        upgrade,
        _changes(workspace, upgrade),
        _measured(workspace, upgrade),
        server.image if server and server.head.service.is_up else "",
    )


def _changes(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    if not upgrade.candidate or not upgrade.image_before:
        return ()
    move = PointerMove(upgrade.target, True, upgrade.image_before, upgrade.candidate_image)
    return pointers.differences(workspace.project, reading.of(workspace.project), (move,))


def _measured(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    """The last run of each kind of the candidate, with the figures of the image before beside its own."""
    if not upgrade.candidate:
        return ()
    before = _latest(workspace, upgrade.image_before)
    lines = []
    for (kind, name), each in _latest(workspace, upgrade.candidate_image).items():
        words = [f"{kind} {name}: {each.verdict}"]
        other = before.get((kind, name))
        for figure in each.figures:
            same = [old for old in (other.figures if other else ()) if (old.name, old.at) == (figure.name, figure.at)]
            depth = f" at {figure.at['depth']}" if "depth" in figure.at else ""
            was = f"{same[0].mean:.4g} → " if same else ""
            words.append(f"{figure.name}{depth} {was}{figure.mean:.4g} {figure.unit}")
        lines.append(", ".join(words))
    return tuple(lines)


def _latest(workspace: Workspace, name: ImageName | None) -> dict[tuple[str, str], Evidence]:
    runs = store.look(workspace.project, name).runs if name else ()
    return {(run.kind, run.name): run for run in runs if not run.foreign}

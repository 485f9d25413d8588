"""The ``mods update`` and ``recipes update`` commands: move copies to what their repositories have now."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.commands import mods_add
from builder.copies import origin, planning
from builder.copies.address import CopyAddress
from builder.definitions.mods import mod_reading
from builder.definitions.recipes import finding
from builder.errors import ConflictError, FileProblemsError, NothingToDoError, SourceError, UsageError
from builder.events import Message
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.copies.origin import Kind, Origin
    from builder.copies.planning import PlannedCopy
    from builder.errors import BuilderError
    from builder.events import Report
    from builder.project import Project


@dataclass(frozen=True)
class PlannedUpdate:
    """The copies to be made, and the errors of those whose repositories do not answer, or no longer have them."""

    copies: tuple[PlannedCopy, ...]
    faults: tuple[BuilderError, ...]

    def require_all(self) -> None:
        """Raises an error with all ``faults``, if there are any."""
        if self.faults:
            hints = dict.fromkeys(fault.hint for fault in self.faults if fault.hint)
            raise SourceError("\n".join(fault.message for fault in self.faults), hint="\n".join(hints))


def plan(project: Project, kind: Kind, names: Sequence[str], ref: str | None, report: Report) -> PlannedUpdate:
    """Plans the update of the copies ``names``, of all where there are none, to ``ref`` or to what each follows.

    Raises UsageError for a name that is no copy.
    """
    existing = origin.names(project, kind)
    if not names and not existing:
        raise NothingToDoError(
            f"no {kind} was copied from another repository", hint=f"`builder {kind}s add` copies one"
        )
    planner = _Planner(project, kind, ref, report)
    copies: list[PlannedCopy] = []
    faults: list[BuilderError] = []
    for name in [_name(kind, text) for text in names] or existing:
        try:
            copied = origin.read(project, kind, name)
            if copied is None:
                hint = did_you_mean(name, existing) or f"copies are: {', '.join(existing) or 'none'}"
                raise UsageError(f"{kind} {name} was not copied from another repository", hint=hint)
            copies.append(planner.plan(name, copied))
        except (SourceError, ConflictError, FileProblemsError) as error:
            faults.append(error)
    return PlannedUpdate(tuple(copies), tuple(faults))


def run(project: Project, planned: Sequence[PlannedCopy]) -> tuple[str, ...]:
    """Makes the copies anew; returns notes and raises as ``mods_add.run`` does."""
    return mods_add.run(project, planned)


class _Planner:
    """Plans copies of a kind; each repository is looked up once."""

    def __init__(self, project: Project, kind: Kind, ref: str | None, report: Report) -> None:
        self._project = project
        self._kind = kind
        self._ref = ref
        self._report = report
        self._upstreams: dict[tuple[str, str], planning.Upstream] = {}

    def plan(self, name: str, copied: Origin) -> PlannedCopy:
        """Plans the copy of what ``copied`` leads to today. Raises SourceError and ConflictError."""
        ref = self._ref or copied.ref
        key = (copied.url, ref)
        if key not in self._upstreams:
            self._upstreams[key] = planning.find(self._project, CopyAddress(copied.url, "", ref), self._notify)
        upstream = replace(self._upstreams[key], address=CopyAddress(copied.url, copied.path, ref))
        paths = planning.mods_at(upstream) if self._kind == "mod" else planning.recipes_at(upstream)
        path = planning.require_one(upstream, self._kind, paths)
        return planning.plan(self._project, upstream, self._kind, path, name, self._notify)

    def _notify(self, line: str) -> None:
        self._report(Message(line))


def _name(kind: Kind, text: str) -> str:
    return mod_reading.name_of(text) if kind == "mod" else finding.name_of(text).removeprefix("recipes/")

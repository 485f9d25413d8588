"""The ``mods update`` and ``recipes update`` commands: move copies to what their repositories have now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.copies import origin, planning
from builder.copies.address import CopyAddress
from builder.definitions.mods import mod_reading
from builder.errors import NothingToDoError, UsageError
from builder.events import Message
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.copies.origin import Kind
    from builder.copies.planning import PlannedCopy
    from builder.events import Report
    from builder.project import Project


def plan(
    project: Project, kind: Kind, names: Sequence[str], ref: str | None, report: Report
) -> tuple[PlannedCopy, ...]:
    """Plans the update of the copies ``names``, of all where there are none, to ``ref`` or to what each follows.

    Raises UsageError for a name that is no copy, SourceError where a repository no longer has it.
    """
    copies = origin.names(project, kind)
    if not names and not copies:
        raise NothingToDoError(
            f"no {kind} was copied from another repository", hint=f"`builder {kind}s add` copies one"
        )

    def notify(line: str) -> None:
        report(Message(line))

    planned: list[PlannedCopy] = []
    upstreams: dict[tuple[str, str], planning.Upstream] = {}
    for text in names or copies:
        name = mod_reading.name_of(text) if kind == "mod" else text.removeprefix("recipes/").removesuffix(".yaml")
        copied = origin.read(project, kind, name)
        if copied is None:
            hint = did_you_mean(name, copies) or f"copies are: {', '.join(copies) or 'none'}"
            raise UsageError(f"{kind} {name} was not copied from another repository", hint=hint)
        key = (copied.url, ref or copied.ref)
        if key not in upstreams:
            upstreams[key] = planning.find(project, CopyAddress(copied.url, "", key[1]), notify)
        upstream = replace(upstreams[key], address=CopyAddress(copied.url, copied.path, key[1]))
        paths = planning.mods_at(upstream) if kind == "mod" else planning.recipes_at(upstream)
        path = planning.require_one(upstream, kind, paths)
        planned.append(planning.plan(project, upstream, kind, path, name, notify))
    return tuple(planned)

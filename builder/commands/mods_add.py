"""The ``mods add`` command: copies mods of another repository into the project, with where they came from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from builder.copies import address, planning
from builder.definitions.mods import known_sources, mod_reading, script_facts
from builder.errors import ConflictError, FileProblemsError, UsageError
from builder.events import Message
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from builder.copies.planning import PlannedCopy
    from builder.events import Report
    from builder.project import Project


def plan(project: Project, text: str, name: str | None, report: Report, *, everything: bool) -> tuple[PlannedCopy, ...]:
    """Plans the copy of the mod at the address ``text``, under its own name or ``name``; of all mods there where
    ``everything`` is wanted. A name of which a place is known is as good as that address.

    Raises UsageError for an address that is none, or that several mods are at; SourceError where the repository, the
    ref or the mod does not exist, or has files that are not copied.
    """
    if name and everything:
        raise UsageError("`--as` names one mod, and `--all` takes several: give one of them")

    def notify(line: str) -> None:
        report(Message(line))

    if mod_reading.NAME.fullmatch(text) and not Path(text).exists():
        sources = known_sources.read(project)
        if text not in sources:
            hint = did_you_mean(text, sources) or "give the address of its repository: URL//mods/NAME@REF"
            raise UsageError(f"no place of a mod `{text}` is known", hint=hint)
        text, name = sources[text], name or (None if everything else text)
    upstream = planning.find(project, address.parse(text), notify)
    paths = planning.mods_at(upstream)
    chosen = paths if everything else (planning.require_one(upstream, "mod", paths),)
    return tuple(
        planning.plan(project, upstream, "mod", path, name or planning.name_of(upstream, "mod", path), notify)
        for path in chosen
    )


def known_addresses(project: Project, names: Iterable[str]) -> Mapping[str, str]:
    """The addresses of those of ``names`` that are known to be mods somewhere, as `plan` takes them."""
    sources = known_sources.read(project)
    return {name: sources[name] for name in names if name in sources}


def run(project: Project, planned: Sequence[PlannedCopy]) -> tuple[str, ...]:
    """Makes the copies; returns what the user should know of the mods among them: problems, and what cannot be baked.

    Raises ConflictError where something has changed since they were planned.
    """
    for each in planned:
        planning.put_in_place(project, each)
    return tuple(note for each in planned if each.kind == "mod" and (note := _note(project, each.name)))


def _note(project: Project, name: str) -> str:
    try:
        facts = script_facts.of(mod_reading.load(project, name))
    except FileProblemsError as error:
        return error.message
    return f"mod {name} cannot be baked: {facts.instead}" if facts and facts.instead else ""


def require_lossless(planned: Sequence[PlannedCopy]) -> None:
    """Raises ConflictError for copies that would replace something which is nowhere else."""
    for each in planned:
        if each.edited and each.replaces:
            edited = ", ".join(each.edited)
            message = f"{each.kind} {each.name} was edited since it was copied: {edited}"
            raise ConflictError(message, hint="`--force` replaces it all the same; `--as NAME` copies beside it")
        if each.loses:
            message = f"{each.kind}s/{each.name} is there, and was not copied from anywhere"
            raise ConflictError(message, hint="`--force` replaces it all the same; `--as NAME` copies beside it")

"""Completions that a shell offers after TAB: options by click, names from the project's files, without the engine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from builder.cli.context import Context

if TYPE_CHECKING:
    import click

    from builder.project import Project

_PLAIN = re.compile(r"(?![-~])[\w./:@+,=%~-]+")

Completer = Callable[["click.Context", "click.Parameter", str], list[str]]


def names(*kinds: str) -> Completer:
    """Completes these kinds of names: functions of `builder.commands.completion` (``definitions``, ``models``, …)."""

    def complete(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        from builder.commands import completion
        from builder.errors import BuilderError

        try:
            project: Project = _context(ctx).project
            candidates = [name for kind in kinds for name in getattr(completion, kind)(project)]
        except BuilderError:  # not in a project, or a file in it is broken: there is nothing to offer
            return []
        return matching(candidates, incomplete)

    return complete


def numbers(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Completes the numbers of the repository, definition, recipe or model that the command line has as its target."""
    from builder.commands import completion
    from builder.errors import BuilderError

    try:
        # An option that still lacks its value keeps click from assigning the arguments before it.
        target = ctx.params.get("target") or next(iter(ctx.args), "")
        candidates = completion.numbers(_context(ctx).project, str(target))
    except BuilderError:
        return []
    return matching(candidates, incomplete)


def matching(candidates: Iterable[str], incomplete: str) -> list[str]:
    """Filters the candidates by what was typed so far, and drops repetitions, and names that are more than one plain
    word to the shell: bash puts them into the line as they are, and a project of others may have them."""
    return list(dict.fromkeys(name for name in candidates if name.startswith(incomplete) and _PLAIN.fullmatch(name)))


def _context(ctx: click.Context) -> Context:
    """The command's own context; click calls no group on the way to a completion, so it may not be there yet."""
    from pathlib import Path

    return ctx.find_object(Context) or Context(ctx.find_root().params.get("project") or Path())

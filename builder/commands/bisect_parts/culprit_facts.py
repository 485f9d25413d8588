"""The facts of a culprit: the commit upstream or the change itself, and what can be done now."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.bisecting import values
from builder.commands.bisect_parts import base_change, points, spans, wheel_points
from builder.commands.bisect_parts.report import FoundCulprit
from builder.errors import SourceError
from builder.events import Message
from builder.lock.model import ImageName
from builder.sources.git import commit_row, remote_refs
from builder.sources.wheels import commit_wheel

if TYPE_CHECKING:
    from builder.bisecting.search import Conclusion, Culprit
    from builder.bisecting.session import Bisection
    from builder.commands.bisect_parts.spans import NumberSpan
    from builder.workspace import Workspace


def of(
    workspace: Workspace, bisection: Bisection, span: NumberSpan, conclusion: Conclusion, culprit: Culprit
) -> FoundCulprit:
    """The facts of a culprit that lies between the two numbers of ``span``. What upstream does not tell is left out,
    and told."""
    tree = points.tree_of(span, culprit.unit)
    if tree:
        old, new = (address.partition("#")[2] for address in (tree.old, tree.new))
        good, bad = culprit.good or old, culprit.bad or new
        url = tree.new.partition("#")[0]
        try:
            facts = commit_row.facts(workspace.project.mirrors, url, bad)
        except SourceError as error:
            workspace.report(Message(error.message))
            facts = None
        source = culprit.unit.rpartition(": ")[2]
        hint = f"`builder lock {_definition(workspace, bisection)} --update {source}={good}` stays on the commit before"
        return FoundCulprit(replace(culprit, good=good, bad=bad), facts, url, "", hint)
    ends = points.wheel_ends(span, culprit.unit)
    if ends and (named := _of_wheels(workspace, bisection, span, culprit, ends)):
        return named
    old_text, new_text = spans.texts_of(span, culprit.unit)
    if culprit.good or culprit.bad:
        old_text, new_text = culprit.good or old_text, culprit.bad or new_text
    text = "".join(difflib.unified_diff(_lines(old_text), _lines(new_text), f"{span.old}", f"{span.new}", n=1))
    if culprit.axis == values.BASE:
        text += base_change.packages(workspace, span, conclusion)
    return FoundCulprit(culprit, text=text, hint=_hint(workspace, bisection, culprit, span))


def _of_wheels(
    workspace: Workspace, bisection: Bisection, span: NumberSpan, culprit: Culprit, ends: tuple[str, str]
) -> FoundCulprit | None:
    """A culprit among the wheels of vLLM's commits; None where it lies between two releases, and that is all."""
    good, bad = culprit.good or ends[0], culprit.bad or ends[1]
    if not any(map(remote_refs.is_commit, (good, bad))):
        return None
    try:
        whole = [wheel_points.whole(workspace, point) for point in (good, bad)]
        facts = wheel_points.facts(workspace, whole[1])
    except SourceError as error:
        workspace.report(Message(error.message))
        return None
    project = workspace.project
    last = whole[0] if commit_wheel.named(good) else good
    hint = wheel_points.to_stay_on(project, span, ends, _definition(workspace, bisection), last)
    resolved = replace(culprit, good=whole[0], bad=whole[1])
    return FoundCulprit(resolved, facts, wheel_points.repository(project), "", hint)


def _lines(text: str) -> list[str]:
    return [f"{line}\n" for line in text.splitlines()]


def _hint(workspace: Workspace, bisection: Bisection, culprit: Culprit, span: NumberSpan) -> str:
    definition = _definition(workspace, bisection)
    name = culprit.unit.rpartition(": ")[2]
    if ends := points.wheel_ends(span, culprit.unit):
        last = culprit.good or ends[0]
        if hint := wheel_points.to_stay_on(workspace.project, span, ends, definition, last):
            return hint
    if culprit.unit.startswith("package ") or ": package " in culprit.unit:
        package = name.removeprefix("package ")
        before = culprit.good or spans.texts_of(span, culprit.unit)[0].partition("==")[2].split(" ")[0].strip()
        return f"`{package}=={before}` under `python.packages` in dockerfiles/{definition}/image.yaml stays on that"
    if culprit.unit.startswith("mod "):
        mod = culprit.unit.removeprefix("mod ").partition(":")[0]
        return f"`git log -p mods/{mod}` shows who changed it"
    if culprit.unit.startswith("recipe"):
        return f"`git log -p {bisection.recipe}` shows who changed it"
    if culprit.axis == "template":
        return f"`git log -p dockerfiles/{definition} dockerfiles/_parts` shows who changed it"
    return f"`builder rollback {bisection.target}` goes back to {span.old}"


def _definition(workspace: Workspace, bisection: Bisection) -> str:
    last = ImageName(bisection.repository, bisection.numbers[-1])
    return spans.definition(workspace.project, last) or "DEFINITION"

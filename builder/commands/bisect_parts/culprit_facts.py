"""The facts of a culprit: the commit upstream or the change itself, and what can be done now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.bisecting import segmenting, values
from builder.commands.bisect_parts import base_change, spans, wheel_points
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
    """The facts of a culprit that lies between the two numbers of ``span``. Where upstream does not answer, they are
    left out, and a message says so."""
    unit = culprit.unit
    last = ImageName(bisection.repository, bisection.numbers[-1])
    definition = spans.definition(workspace.project, last) or "DEFINITION"
    if tree := span.tree(unit):
        good, bad = culprit.good or tree.old_commit, culprit.bad or tree.new_commit
        try:
            facts = commit_row.facts(workspace.project.mirrors, tree.url, bad)
        except SourceError as error:
            workspace.report(Message(error.message))
            facts = None
        hint = f"`builder lock {definition} --update {unit.rpartition(': ')[2]}={good}` stays on the commit before"
        return FoundCulprit(replace(culprit, good=good, bad=bad), facts, hint=hint)
    if package := span.package(unit):
        ends = span.versions(package)
        culprit = replace(culprit, good=culprit.good or ends[0], bad=culprit.bad or ends[1])
        if package == wheel_points.PACKAGE:
            return _of_wheels(workspace, span, culprit, definition)
        file = f"dockerfiles/{definition}/image.yaml"
        hint = f"`{package}=={culprit.good}` under `python.packages` in {file} stays on that"
        return FoundCulprit(culprit, hint=hint)
    text = spans.change_of(span, unit)
    if culprit.axis == values.BASE:
        text += base_change.packages(workspace, span, conclusion)
    path = {
        "mod": f"mods/{culprit.axis.removeprefix('mod ')}",
        "recipe": bisection.recipe,
        segmenting.TEMPLATE: f"dockerfiles/{definition} dockerfiles/_parts",
    }.get(culprit.axis.partition(" ")[0])
    undone = f"`builder rollback {bisection.target}` goes back to {span.old}"
    return FoundCulprit(culprit, text=text, hint=f"`git log -p {path}` shows who changed it" if path else undone)


def _of_wheels(workspace: Workspace, span: NumberSpan, culprit: Culprit, definition: str) -> FoundCulprit:
    """A culprit among the wheels of vLLM: a commit, where one of its ends names one, else the two releases."""
    project, last, facts = workspace.project, culprit.good, None
    if any(map(remote_refs.is_commit, (culprit.good, culprit.bad))):
        try:
            good, bad = (wheel_points.whole(workspace, point) for point in (culprit.good, culprit.bad))
            facts = wheel_points.facts(workspace, bad)
        except SourceError as error:
            workspace.report(Message(error.message))
        else:
            last = good if commit_wheel.named(last) else last
            culprit = replace(culprit, good=good, bad=bad)
    return FoundCulprit(culprit, facts, hint=wheel_points.to_stay_on(project, span, definition, last))

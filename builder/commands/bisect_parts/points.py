"""The points of a unit between its two ends: commits of a source from git, versions of a package."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from builder.bisecting.difference import Row
from builder.bisecting.search import ListPoints
from builder.commands.bisect_parts import wheel_points
from builder.errors import SourceError
from builder.events import Message
from builder.sources import released_versions
from builder.sources.git import commit_row, remote_refs
from builder.sources.wheels import commit_wheel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.commands.bisect_parts.spans import NumberSpan
    from builder.plan.model import StagedFile
    from builder.workspace import Workspace


def row(workspace: Workspace, span: NumberSpan, question: ListPoints) -> Row:
    """The points that a unit has; none where nothing is known between its ends. A repository or an index that does not
    answer is reported, and leaves the unit as it is."""
    unit, after, before = question.unit, question.after, question.before
    listed: tuple[str, ...] = ()
    try:
        if tree := span.tree(unit):
            listed = commit_row.between(
                workspace.project.mirrors,
                tree.url,
                after or tree.old_commit,
                before or tree.new_commit,
                lambda text: workspace.report(Message(text)),
            )
        elif package := span.package(unit):
            ends = span.versions(package)
            if not (after or before or any(map(commit_wheel.named, ends))):
                listed = released_versions.between(package, *ends, workspace.environment)
            if not listed and package == wheel_points.PACKAGE:
                listed = wheel_points.between(workspace, span, question)
    except SourceError as error:
        workspace.report(Message(f"the commits or versions between cannot be listed: {error.message.splitlines()[0]}"))
    return Row(unit, after, before, listed)


def finest(workspace: Workspace, span: NumberSpan, unit: str) -> tuple[str, ...] | None:
    """All commits between the ends of a unit, None for one that has none, or where they are not known: in a plan, what
    lies between is a question, too, and its answer no condition."""
    question = ListPoints(span.old.number, span.new.number, unit)
    if span.tree(unit):
        return row(workspace, span, question).points
    if span.package(unit) != wheel_points.PACKAGE:
        return None
    try:
        return wheel_points.between(workspace, span, question)
    except SourceError as error:
        workspace.report(Message(f"which commits lie between is not known: {error.message.splitlines()[0]}"))
        return None


def values(workspace: Workspace, span: NumberSpan, chosen: Mapping[str, str]) -> dict[str, str]:
    """The values of the texts of a build at these points. Raises SourceError where one cannot be had."""
    made: dict[str, str] = {}
    for unit, point in chosen.items():
        if tree := span.tree(unit):
            commits = (tree.old_commit, tree.new_commit)
            facts = commit_row.facts(workspace.project.mirrors, tree.url, point, within=commits)
            date = int(datetime.fromisoformat(facts.date).timestamp())
            made |= {f"{unit} commit": point, f"{unit} version": facts.version, f"{unit} date": str(date)}
        elif remote_refs.is_commit(point) and span.package(unit) == wheel_points.PACKAGE:
            made |= wheel_points.values(workspace, span, unit, point)
        elif package := span.package(unit):
            line = released_versions.line(package, point, workspace.environment)
            made |= {f"package {package}": line, f"{unit} version": point}
    return made


def require_fitting(
    workspace: Workspace, span: NumberSpan, chosen: Mapping[str, str], files: Mapping[str, StagedFile]
) -> None:
    """Raises SourceError where what is at one of these points does not go with the rest of ``files``."""
    for unit, point in chosen.items():
        if remote_refs.is_commit(point) and span.package(unit) == wheel_points.PACKAGE:
            wheel_points.require_fitting(workspace, span, point, files)

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

    from builder.bisecting.mixture import SourceTree
    from builder.commands.bisect_parts.spans import NumberSpan
    from builder.plan.model import StagedFile
    from builder.workspace import Workspace

_PACKAGE = "package "


def row(workspace: Workspace, span: NumberSpan, question: ListPoints) -> Row:
    """The points that a unit has; none where nothing is known between its ends. A repository or an index that does not
    answer is told, and leaves the unit as it is."""
    listed: tuple[str, ...] = ()
    try:
        if tree := tree_of(span, question.unit):
            listed = _commits(workspace, tree, question)
        elif package := package_of(span, question.unit):
            listed = _versions(workspace, span, package, question) or _wheels(workspace, span, package, question)
    except SourceError as error:
        workspace.report(Message(f"the commits or versions between cannot be listed: {error.message.splitlines()[0]}"))
    return Row(question.unit, question.after, question.before, listed)


def finest(workspace: Workspace, span: NumberSpan, unit: str) -> tuple[str, ...] | None:
    """All commits between the ends of a unit, None for one that has none, or where they are not known: in a plan, what
    lies between is a question, too, and its answer no condition."""
    question = ListPoints(span.old.number, span.new.number, unit)
    if tree_of(span, unit):
        return row(workspace, span, question).points
    if not wheel_ends(span, unit):
        return None
    try:
        return _wheels(workspace, span, wheel_points.PACKAGE, question)
    except SourceError as error:
        workspace.report(Message(f"which commits lie between is not known: {error.message.splitlines()[0]}"))
        return None


def values(workspace: Workspace, span: NumberSpan, chosen: Mapping[str, str]) -> dict[str, str]:
    """The values of the texts of a build at these points. Raises SourceError where one cannot be had."""
    made: dict[str, str] = {}
    for unit, point in chosen.items():
        if tree := tree_of(span, unit):
            commits = tuple(address.partition("#")[2] for address in (tree.old, tree.new))
            facts = commit_row.facts(workspace.project.mirrors, _address(tree), point, within=commits)
            date = int(datetime.fromisoformat(facts.date).timestamp())
            made[f"{unit} commit"] = point
            made[f"{unit} version"] = facts.version
            made[f"{unit} date"] = str(date)
        elif remote_refs.is_commit(point) and (versions := wheel_ends(span, unit)):
            made |= wheel_points.values(workspace, span, unit, versions, point)
        elif package := package_of(span, unit):
            made[f"{_PACKAGE}{package}"] = released_versions.line(package, point, workspace.environment)
            made[f"{unit} version"] = point
    return made


def require_fitting(
    workspace: Workspace, span: NumberSpan, chosen: Mapping[str, str], files: Mapping[str, StagedFile]
) -> None:
    """Raises SourceError where what is at one of these points does not go with the rest of ``files``."""
    for unit, point in chosen.items():
        if remote_refs.is_commit(point) and (versions := wheel_ends(span, unit)):
            wheel_points.require_fitting(workspace, span, versions, point, files)


def tree_of(span: NumberSpan, unit: str) -> SourceTree | None:
    """The tree of a source that both builds take from git."""
    parts = span.builds.parts if span.builds else ()
    trees = (tree for part in parts for tree in part.trees if tree.unit == unit and tree.old and tree.new)
    return next(trees, None)


def _address(tree: SourceTree) -> str:
    return tree.new.partition("#")[0]


def _commits(workspace: Workspace, tree: SourceTree, question: ListPoints) -> tuple[str, ...]:
    old, new = (address.partition("#")[2] for address in (tree.old, tree.new))
    return commit_row.between(
        workspace.project.mirrors,
        _address(tree),
        question.after or old,
        question.before or new,
        lambda text: workspace.report(Message(text)),
    )


def wheel_ends(span: NumberSpan, unit: str) -> tuple[str, str] | None:
    """The versions of vLLM on either side, where both take it as a wheel: there is one of each commit between them."""
    return ends(span, unit) if package_of(span, unit) == wheel_points.PACKAGE else None


def package_of(span: NumberSpan, unit: str) -> str:
    """The package whose line in a requirement file is of this unit alone, on both sides."""
    keys = {key for key, _ in _lines(span, unit)}
    return keys.pop().removeprefix(_PACKAGE) if len(keys) == 1 and all(ends(span, unit)) else ""


def ends(span: NumberSpan, unit: str) -> tuple[str, str]:
    """The version of the package of a unit on either side, empty where it is not there."""
    sides = [[line for _, both in _lines(span, unit) if (line := both[side])] for side in (0, 1)]
    old, new = (lines[0].partition("==")[2].split()[0] if lines else "" for lines in sides)
    return old, new


def _lines(span: NumberSpan, unit: str) -> list[tuple[str, tuple[str, str]]]:
    """The key and the two sides of each line of a requirement file that is of this unit."""
    return [
        (segment.key, (segment.old.decode(), segment.new.decode()))
        for file in span.files
        for segment in file.segments
        if segment.unit == unit and segment.key.startswith(_PACKAGE)
    ]


def _versions(workspace: Workspace, span: NumberSpan, package: str, question: ListPoints) -> tuple[str, ...]:
    old, new = ends(span, question.unit)
    if question.after or question.before or commit_wheel.named(old) or commit_wheel.named(new):
        return ()
    return released_versions.between(package, old, new, workspace.environment)


def _wheels(workspace: Workspace, span: NumberSpan, package: str, question: ListPoints) -> tuple[str, ...]:
    if package != wheel_points.PACKAGE:
        return ()
    return wheel_points.between(workspace, ends(span, question.unit), question)

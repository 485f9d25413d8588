"""The points of a unit between its two ends: commits of a source from git, versions of a package."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from builder.bisecting.difference import Point, Row
from builder.errors import SourceError
from builder.events import Message
from builder.sources import released_versions
from builder.sources.git import commit_row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.bisecting.mixture import SourceTree
    from builder.bisecting.search import ListPoints
    from builder.commands.bisect_parts.spans import NumberSpan
    from builder.workspace import Workspace

_PACKAGE = "package "


def row(workspace: Workspace, span: NumberSpan, question: ListPoints) -> Row:
    """The points that a unit has; none where nothing is known between its ends. A repository or an index that does not
    answer is told, and leaves the unit as it is."""
    listed: tuple[Point, ...] = ()
    try:
        if tree := tree_of(span, question.unit):
            listed = _commits(workspace, tree, question)
        elif package := _package_of(span, question.unit):
            listed = _versions(workspace, span, package, question)
    except SourceError as error:
        workspace.report(Message(f"the commits or versions between cannot be listed: {error.message.splitlines()[0]}"))
    return Row(question.unit, question.after, question.before, listed)


def values(workspace: Workspace, span: NumberSpan, chosen: Mapping[str, str]) -> dict[str, bytes]:
    """The values of the texts of a build at these points. Raises SourceError where one cannot be had."""
    made: dict[str, bytes] = {}
    for unit, point in chosen.items():
        if tree := tree_of(span, unit):
            facts = commit_row.facts(workspace.project.mirrors, _address(tree), point)
            date = int(datetime.fromisoformat(facts.date).timestamp())
            made[f"{unit} commit"] = point.encode()
            made[f"{unit} version"] = facts.version.encode()
            made[f"{unit} date"] = str(date).encode()
        elif package := _package_of(span, unit):
            made[f"{_PACKAGE}{package}"] = released_versions.line(package, point, workspace.environment).encode()
            made[f"{unit} version"] = point.encode()
    return made


def tree_of(span: NumberSpan, unit: str) -> SourceTree | None:
    """The tree of a source that both builds take from git."""
    parts = span.builds.parts if span.builds else ()
    trees = (tree for part in parts for tree in part.trees if tree.unit == unit and tree.old and tree.new)
    return next(trees, None)


def _address(tree: SourceTree) -> str:
    return tree.new.partition("#")[0]


def _commits(workspace: Workspace, tree: SourceTree, question: ListPoints) -> tuple[Point, ...]:
    old, new = (address.partition("#")[2] for address in (tree.old, tree.new))
    commits = commit_row.between(
        workspace.project.mirrors,
        _address(tree),
        question.after or old,
        question.before or new,
        lambda text: workspace.report(Message(text)),
    )
    return tuple(Point(commit) for commit in commits)


def _package_of(span: NumberSpan, unit: str) -> str:
    """The package whose line in a requirement file is of this unit alone, on both sides."""
    files = span.builds.files if span.builds else ()
    keys = {
        segment.key
        for file in files
        for segment in file.segments
        if segment.unit == unit and segment.key.startswith(_PACKAGE) and segment.old and segment.new
    }
    return keys.pop().removeprefix(_PACKAGE) if len(keys) == 1 else ""


def _versions(workspace: Workspace, span: NumberSpan, package: str, question: ListPoints) -> tuple[Point, ...]:
    if question.after or question.before:
        return ()
    ends = []
    for file in span.builds.files if span.builds else ():
        for segment in file.segments:
            if segment.key == f"{_PACKAGE}{package}":
                ends = [side.decode().partition("==")[2].split()[0] for side in (segment.old, segment.new)]
    listed = released_versions.between(package, ends[0], ends[1], workspace.environment) if ends else ()
    return tuple(Point(version) for version in listed)

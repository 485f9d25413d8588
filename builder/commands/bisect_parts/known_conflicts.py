"""Packages that do not take each other, by what they say themselves: such mixtures are left out, and not built to
see."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING

from builder.bisecting.segmenting import PACKAGE
from builder.definitions.image import PACKAGES_BUILT_FROM
from builder.engine import containers, installed
from builder.errors import BuilderError
from builder.numbered import identity
from builder.sources.wheels import wheel_needs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from builder.commands.bisect_parts.spans import NumberSpan
    from builder.lock.model import ImageName
    from builder.workspace import Workspace

    Packages = Mapping[str, tuple[str, tuple[str, ...]]]

_SECONDS = 120
_NO_EXTRA = {"extra": ""}  # of this machine otherwise
_LIST = """
import importlib.metadata, json, re
print(json.dumps({
    re.sub("[-_.]+", "-", dist.metadata["Name"] or "").lower(): [dist.version, dist.requires or []]
    for dist in importlib.metadata.distributions()
}))
"""


def reader(workspace: Workspace, spans: Callable[[int, int], NumberSpan]) -> Callable[[int, int, frozenset[str]], str]:
    """A function that says why the old number cannot have some units of the new one; empty where nothing speaks
    against it."""

    @functools.cache
    def packages(old: int, new: int) -> tuple[Packages, Packages, Mapping[str, str]]:
        span = spans(old, new)
        units = _units(span)
        is_needed = len(set(units.values())) > 1
        before, after = (_installed(workspace, name) if is_needed else {} for name in (span.old, span.new))
        return before, after, units

    @functools.cache
    def conflict(old: int, new: int, taken: frozenset[str]) -> str:
        before, after, units = packages(old, new)
        if not before or not after:
            return ""
        sides = {name: after if units.get(name) in taken else before for name in before.keys() | after.keys()}
        mixed = {name: side[name] for name, side in sides.items() if name in side}
        accepted = {*_conflicts(before), *_conflicts(after)}
        return next((text for text in _conflicts(mixed) if text not in accepted), "")

    return conflict


def _units(span: NumberSpan) -> dict[str, str]:
    """The unit that decides over each package that differs."""
    units = {
        segment.key.removeprefix(PACKAGE): segment.unit
        for file in span.files
        for segment in file.segments
        if segment.unit and segment.key
    }
    for part in span.builds.parts if span.builds else ():
        for tree in part.trees:
            if tree.old != tree.new:
                units.update(dict.fromkeys(PACKAGES_BUILT_FROM.get(tree.name, (tree.name,)), tree.unit))
    return units


def _conflicts(packages: Packages) -> Iterator[str]:
    """Yields what a package requires that the others do not fulfil."""
    versions = {name: version for name, (version, _) in packages.items()}
    for name, (version, requires) in sorted(packages.items()):
        for text in requires:
            if unmet := wheel_needs.unmet_need(text, versions, _NO_EXTRA):
                yield f"{name} {version} requires {unmet[0]}, but would get {unmet[1]}"


def _installed(workspace: Workspace, name: ImageName) -> Packages:
    """The packages of an image with what they require; none where it cannot be told, which leaves out nothing."""
    labels = {identity.PROJECT: identity.of(workspace.project).id}
    try:
        with containers.running(workspace.engine, str(name), labels=labels, workdir="/") as container:
            python = installed.find_python(container)
            if not python:
                return {}
            result = container.run([python, "-c", _LIST], timeout=_SECONDS)
        data = json.loads(result.output.strip().splitlines()[-1]) if not result.exit_code else {}
        return {str(key): (str(value[0]), tuple(map(str, value[1]))) for key, value in data.items()}
    except (BuilderError, ValueError, IndexError, TypeError, AttributeError):
        return {}

"""The outlook of a bisection before its first candidate: the steps, the time to build their images, and the disk."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from builder import humanize
from builder.bisecting import build_steps, difference, mixture
from builder.bisecting.session import BisectOutlook
from builder.building import step_times
from builder.commands.bisect_parts import points, words
from builder.engine import build_machine, disk_usage, images

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from builder.bisecting.session import Bisection
    from builder.commands.bisect_parts.spans import NumberSpan
    from builder.commands.bisect_parts.steps import BisectContext
    from builder.workspace import Workspace

# For each answer the image that is tried, and one that was built meanwhile and is not needed.
_IMAGES_A_STEP = 2
_SOME_COMMIT = "0" * 40


def of_bisection(workspace: Workspace, bisection: Bisection, shared: BisectContext) -> BisectOutlook:
    """The outlook of a bisection: to the axis as the search goes if every verdict is the less favourable one, and then
    on the axis that takes the longest."""
    spans = [shared.spans(*pair) for pair in pairwise(bisection.numbers)]
    axes = [cost for span in spans for cost in _axes(workspace, span)]
    ends = {bisection.numbers[0], bisection.numbers[-1]}
    to_axis = [
        tried
        for tried in words.candidates_ahead(bisection, shared.subject)
        if tried.number not in ends and not difference.is_inside_axis(shared.span_of(tried).axes, tried)
    ]
    built = [(tried, shared.span_of(tried)) for tried in to_axis if tried.number is None]
    times = [_seconds(workspace, span, span.units_of_image(tried), {}) for tried, span in built]
    on_axis = max((steps for _, steps, _ in axes), default=0)
    longest = max((steps * seconds for _, steps, seconds in axes), default=0.0)
    is_known = math.isfinite(sum(times) + sum(seconds for _, _, seconds in axes))
    machine = build_machine.look(workspace.engine)
    own = max((_own_bytes(workspace, span) for span in spans), default=0)
    return BisectOutlook(
        steps=len(to_axis) + on_axis,
        steps_on_axis=on_axis,
        axes=tuple(dict.fromkeys(text for text, _, _ in axes)),
        seconds=sum(times) + longest if is_known else None,
        disk=_IMAGES_A_STEP * (len(times) + on_axis) * own,
        free=build_machine.free_disk(machine.data_root) if machine else None,
    )


def _axes(workspace: Workspace, span: NumberSpan) -> Iterator[tuple[str, int, float]]:
    """Yields each axis in words, the steps to the place on it, and the seconds that the image of a step takes."""
    for axis in span.axes:
        rows = ((unit, commits) for unit in axis.units if (commits := points.finest(workspace, span, unit)) is not None)
        unit, commits = next(rows, (axis.units[0], None))
        if commits is None:
            count = len(axis.units)
            text = f"{axis.name} ({count})" if count > 1 else axis.name
            yield text, (count - 1).bit_length(), _seconds(workspace, span, [unit], {})
        else:
            some = {f"{unit} commit": _SOME_COMMIT, f"package {unit}": _SOME_COMMIT}
            text = f"{axis.name} ({humanize.counted(len(commits), 'commit')} between)"
            yield text, len(commits).bit_length(), _seconds(workspace, span, [unit], some)


def _seconds(workspace: Workspace, span: NumberSpan, taken: Collection[str], values: Mapping[str, str]) -> float:
    """The seconds to build an image with these units, beside what the two numbers have: as long as each step took
    before. Infinite where one that compiles was never built here."""
    if span.builds is None:
        return 0.0
    steps = [
        build_steps.titles(mixture.files(span.builds, units, own), mixture.targets(span.builds, units, own))
        for units, own in ((taken, values), ((), {}), (span.every, {}))
    ]
    wanted, *done = steps
    expected = step_times.expected(step_times.load(workspace.project), build_steps.new_titles(wanted, *done))
    return math.inf if expected is None else expected


def _own_bytes(workspace: Workspace, span: NumberSpan) -> int:
    """The bytes of the layers that the newer number does not share with the older one: about what a candidate takes."""
    old, new = (images.inspect(workspace.engine, str(name)) for name in (span.old, span.new))
    if old is None or new is None:
        return 0
    sizes = disk_usage.layer_sizes(workspace.engine, (new,))
    shared = set(disk_usage.layers(old))
    return sum(sizes.get(layer, 0) for layer in disk_usage.layers(new) if layer not in shared)

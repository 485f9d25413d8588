"""The outlook of a bisection before its first candidate: the steps, the time to build their images, and the disk."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class _AxisCost:
    """The search on one axis: how many ``places`` lie between its two ends, the axis in words, and the seconds that the
    image of each takes to build, None where nothing tells."""

    text: str
    places: int
    seconds: float | None

    @property
    def steps(self) -> int:
        return self.places.bit_length()

    @property
    def all_seconds(self) -> float | None:
        return None if self.seconds is None else self.steps * self.seconds


def of_bisection(workspace: Workspace, bisection: Bisection, shared: BisectContext) -> BisectOutlook:
    """The outlook of a bisection: to the axis as the search goes if every verdict is the less favourable one, and then
    on the axis that takes the longest."""
    spans = [shared.spans(*pair) for pair in pairwise(bisection.numbers)]
    costs = [cost for span in spans for cost in _costs(workspace, span)]
    ahead = words.candidates_ahead(bisection, shared.subject)
    ends = {bisection.numbers[0], bisection.numbers[-1]}
    to_axis = [
        tried
        for tried in ahead
        if tried.number not in ends and not difference.is_inside_axis(shared.span_of(tried).axes, tried)
    ]
    mixed = [tried for tried in to_axis if tried.number is None]
    times = [
        _seconds(workspace, span, span.units_of_image(tried), {}) for tried in mixed if (span := shared.span_of(tried))
    ]
    on_axis = max((cost.steps for cost in costs), default=0)
    every = [*times, *(cost.all_seconds for cost in costs)]
    longest = max((cost.all_seconds or 0.0 for cost in costs), default=0.0)
    machine = build_machine.look(workspace.engine)
    own = max((_own_bytes(workspace, span) for span in spans), default=0)
    return BisectOutlook(
        steps=len(to_axis) + on_axis,
        steps_on_axis=on_axis,
        axes=tuple(dict.fromkeys(cost.text for cost in costs)),
        seconds=None if None in every else sum(each or 0.0 for each in times) + longest,
        disk=_IMAGES_A_STEP * (len(times) + on_axis) * own,
        free=build_machine.free_disk(machine.data_root) if machine else None,
    )


def _costs(workspace: Workspace, span: NumberSpan) -> Iterator[_AxisCost]:
    for axis in span.axes:
        for unit in axis.units:
            commits = points.finest(workspace, span, unit)
            if commits is not None:
                some = {f"{unit} commit": _SOME_COMMIT, f"package {unit}": _SOME_COMMIT}
                seconds = _seconds(workspace, span, [unit], some)
                between = humanize.counted(len(commits), "commit")
                yield _AxisCost(f"{axis.name} ({between} between)", len(commits), seconds)
                break
        else:
            count = len(axis.units)
            text = f"{axis.name} ({count})" if count > 1 else axis.name
            yield _AxisCost(text, count - 1, _seconds(workspace, span, axis.units[:1], {}))


def _seconds(workspace: Workspace, span: NumberSpan, taken: Collection[str], values: Mapping[str, str]) -> float | None:
    """The seconds to build an image with these units, beside what the two numbers have: as long as each step took
    before. None where one that compiles was never built here."""
    if span.builds is None:
        return 0.0
    steps = [
        build_steps.titles(mixture.files(span.builds, units, own), mixture.targets(span.builds, units, own))
        for units, own in ((taken, values), ((), {}), (span.every, {}))
    ]
    wanted, *done = steps
    return step_times.expected(step_times.load(workspace.project), build_steps.new_titles(wanted, *done))


def _own_bytes(workspace: Workspace, span: NumberSpan) -> int:
    """The bytes of the layers that the newer number does not share with the older one: about what a candidate takes."""
    old, new = (images.inspect(workspace.engine, str(name)) for name in (span.old, span.new))
    if old is None or new is None:
        return 0
    sizes = disk_usage.layer_sizes(workspace.engine, (new,))
    shared = set(disk_usage.layers(old))
    return sum(sizes.get(layer, 0) for layer in disk_usage.layers(new) if layer not in shared)

"""The moment after which nothing is taken into a closure: that of the source that the packages are for.

A release pinned months later would otherwise get the newest of everything, which it was never run with, and which later
releases often exclude.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from builder import timestamp
from builder.definitions.image import AS_OF_SOURCE, AS_OF_TODAY, WheelSource
from builder.errors import SourceError
from builder.lock.pins import GitPin, IncludedPin
from builder.pinning import wheel_versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.image import ImageDefinition, PythonRequirements
    from builder.lock.pins import Pins
    from builder.pinning.resolver import Resolver

DAYS = 14
"""How much newer than the source packages may be: what mends a release comes in the days after it."""

# The source whose time counts where a definition has several: FlashInfer follows vLLM.
_GOVERNING = ("vllm", "flashinfer")


def limit(
    definition: ImageDefinition,
    wants: PythonRequirements,
    pins: tuple[Pins, Pins],
    below: str,
    resolver: Resolver,
    update: Mapping[str, str | None],
) -> str:
    """The moment (RFC 3339 UTC) after which nothing is taken; empty where there is none.

    ``pins`` are those before, and those with the sources that the closures are for; ``below`` is the moment of the
    image that this one is built on. Packages of a closure that is kept are not too new: it was resolved as it is.
    """
    if wants.as_of == AS_OF_TODAY:
        return ""
    if wants.as_of != AS_OF_SOURCE:
        return f"{wants.as_of}T23:59:59Z"
    name = next((name for name in _GOVERNING if name in definition.sources), None)
    if name is None:
        return below
    before, now = pins
    stays = "python" not in update and _is_same(definition, name, before, now, update)
    pin = now.sources.get(name)
    made = _made(definition, wants, name, now, pin.version if stays and pin else update.get(name), resolver)
    if not made:
        resolver.say(f"{definition.name}: the day of its {name} is not known, so its packages are those of today")
        return ""
    end = timestamp.of(datetime.fromisoformat(made) + timedelta(days=DAYS))
    return max(end, _limit_before(before)) if stays else end


def _limit_before(pins: Pins) -> str:
    """The moment after which nothing was taken into a closure. Where it had no limit, the first moment after the upload
    of its newest package; empty where none is known. A package named with an exact version may be younger than the
    limit, and must not move it: all others would follow."""
    if pins.python is None or pins.python.as_of:
        return pins.python.as_of if pins.python else ""
    newest = pins.python.newest
    return timestamp.of(datetime.fromisoformat(newest) + timedelta(seconds=1)) if newest else ""


def _is_same(definition: ImageDefinition, name: str, before: Pins, now: Pins, update: Mapping[str, str | None]) -> bool:
    """True where the closure before was resolved for the same source."""
    source, pin = definition.sources[name], before.sources.get(name)
    if pin is None or name in update:
        return False
    if isinstance(source, WheelSource):
        return not isinstance(pin, GitPin | IncludedPin) and pin.requested == source.requested
    return pin.version == now.sources[name].version and pin.commit == now.sources[name].commit


def _made(
    definition: ImageDefinition,
    wants: PythonRequirements,
    name: str,
    pins: Pins,
    version: str | None,
    resolver: Resolver,
) -> str:
    """The moment that a source was committed, uploaded, or baked into the base; empty where nothing tells it. That of a
    wheel is of ``version`` where one is given."""
    from builder.sources.wheels import wheel_date

    source, pin = definition.sources[name], pins.sources.get(name)
    if isinstance(pin, GitPin):
        return pin.date
    if not isinstance(source, WheelSource):
        return pins.base.created if pins.base else ""
    requirement = wheel_versions.requirement(source, pin, version)
    try:
        return wheel_date.read(requirement, wants, definition.platform, resolver.settings)
    except SourceError:
        return ""  # the closure cannot be had, either, and says why

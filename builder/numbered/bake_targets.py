"""The bake targets of a recorded build, as this program makes them.

The bake file of a build directory may come from anybody, and a bake file may name folders, secrets and outputs of the
machine that builds. So it is never run: what it says is compared with the targets that a plan of these steps has, and
these are what is run. All versions of this program have made the same ones.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any

from builder.errors import FileProblemsError, Location, Problem
from builder.plan import bake

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.numbered.build_directory import BuildDirectory, BuildPart

_TOLD = 20
_LONGEST = 60
_EPOCH = re.compile("0|[1-9][0-9]{0,11}")
_LABEL = re.compile(r"(?:builder|org\.opencontainers\.image)\.[a-z0-9.-]{1,100}")


def of(directory: BuildDirectory, platform: str) -> dict[str, dict[str, Any]]:
    """Returns the targets that build a number for ``platform`` again. Raises FileProblemsError with everything in the
    bake file that no build of this program has."""
    if wrong := tuple(islice(deviations(directory, platform), _TOLD)):
        location = Location(f"{directory.shown}/{bake.FILE}")
        raise FileProblemsError(
            tuple(Problem(location, f"{what} is not as this program writes it") for what in wrong),
            hint="nothing of it was run; `git log` tells who changed it, and git has the file as it was",
        )
    return dict(_targets(directory, platform))


def deviations(directory: BuildDirectory, platform: str) -> Iterator[str]:
    """Yields what differs in the bake file from those that this program writes, apart from labels and the date of the
    image, which it takes as they are."""
    expected = dict(_targets(directory, platform))
    document = directory.bake_file
    if bake.TARGET not in expected:
        yield f"target {bake.TARGET}, of which the plan knows nothing,"
    yield from (f"`{key[:_LONGEST]}`" for key in sorted(document.keys() - {"group", "target"}))
    if document.get("group", bake.groups()) != bake.groups():
        yield "`group`"
    yield from (f"target {name[:_LONGEST]}" for name in sorted(document["target"].keys() - expected.keys()))
    for name, target in expected.items():
        recorded = document["target"].get(name, {})
        for key in sorted(recorded.keys() | target.keys()):
            if key not in recorded or key not in target or recorded[key] != target[key]:
                yield f"`{key[:_LONGEST]}` of target {name}"


def _targets(directory: BuildDirectory, platform: str) -> Iterator[tuple[str, dict[str, Any]]]:
    parent = ""
    for part in directory.parts:
        trees = {
            name: f"{url}#{commit}" for name, (url, commit) in part.contexts.items() if commit == _commit(part, name)
        }
        secret = bake.packages_secret(part.definition)
        # Builds of before this program recorded packages have none.
        records = part.target.get("secret") == [secret]
        target = bake.target(platform, _epoch(part), trees, parent or None, records_packages=records)
        if part.definition:
            secrets = {"secret": [secret]} if records else {}
            yield part.definition, {**target, "context": part.definition, **secrets}
        else:
            labels = _labels(part)
            yield bake.TARGET, {**target, **({"labels": labels} if labels else {})}
        parent = part.definition


def _commit(part: BuildPart, source: str) -> str:
    return part.takes.get(source, {}).get("commit", "")


def _epoch(part: BuildPart) -> int:
    """The date of the image in the bake file, in seconds; 0 where that is none."""
    epoch = part.target.get("args", {}).get("SOURCE_DATE_EPOCH")
    return int(epoch) if isinstance(epoch, str) and _EPOCH.fullmatch(epoch) else 0


def _labels(part: BuildPart) -> dict[str, str]:
    """The labels in the bake file that are of the kind that this program writes."""
    labels = part.target.get("labels", {})
    return {name: value for name, value in labels.items() if isinstance(value, str) and _LABEL.fullmatch(name)}

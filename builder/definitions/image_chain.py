"""A definition with those that it stands on (``from:``), and what one command asks for in place of what they say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from builder.definitions import image
from builder.errors import FileProblemsError, Problem, UsageError
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.image import ImageDefinition
    from builder.project import Project


@dataclass(frozen=True)
class Overrides:
    """What one command asks for in place of what the files say: another platform, other values for the template."""

    platform: str | None = None
    args: Mapping[str, str] = field(default_factory=dict)


def load(
    project: Project, name: str, host_platform: str, overrides: Overrides | None = None
) -> tuple[ImageDefinition, ...]:
    """The definition ``name`` and those that it stands on, the lowest first, with the ``overrides`` that concern each.

    Raises FileProblemsError for one that stands on itself, on one for another platform or on none that is there,
    UsageError for an override that concerns none; as ``image.load`` does otherwise.
    """
    found = _chain(project, name, host_platform)
    if overrides is None:
        return found
    known = {key for one in found for key in one.args}
    for key in overrides.args:
        if key not in known:
            raise UsageError(f"{name} has no argument `{key}`", hint=f"it has: {', '.join(sorted(known)) or 'none'}")
    return tuple(_overridden(one, overrides) for one in found)


def _overridden(definition: ImageDefinition, overrides: Overrides) -> ImageDefinition:
    own = {key: yaml_file.load(value, "--set") for key, value in overrides.args.items() if key in definition.args}
    for key, value in own.items():
        if not isinstance(value, image.ArgumentValue):
            raise UsageError(f"`--set {key}={overrides.args[key]}` is not one plain value")
    return replace(definition, platform=overrides.platform or definition.platform, args={**definition.args, **own})


def _chain(project: Project, name: str, host_platform: str) -> tuple[ImageDefinition, ...]:
    found = [image.load(project, name, host_platform)]
    while found[0].parent:
        above, parent = found[0], found[0].parent
        if parent not in image.names(project):
            raise _wrong_from(project, above, f"there is no definition `{parent}`")
        if parent in {one.name for one in found}:
            raise _wrong_from(project, above, f"`{parent}` stands on this one: they go round in a circle")
        below = image.load(project, parent, host_platform)
        if below.platform != above.platform:
            raise _wrong_from(project, above, f"{above.name} is for {above.platform}, {parent} for {below.platform}")
        found.insert(0, below)
    return tuple(found)


def _wrong_from(project: Project, definition: ImageDefinition, said: str) -> FileProblemsError:
    hint = f"definitions here: {', '.join(image.names(project))}"
    return FileProblemsError((Problem(image.location(project, definition.name, "from"), f"`from`: {said}"),), hint=hint)

"""The chain of a definition and its parents (``from:``), and the overrides that a command applies to it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from builder.definitions import image
from builder.errors import FileProblemsError, Problem, UsageError
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.image import ImageDefinition
    from builder.project import Project

BUILD_JOBS = "build_jobs"


@dataclass(frozen=True)
class Overrides:
    """Values that a command uses in place of those in the files: another platform, other arguments of the template."""

    platform: str | None = None
    args: Mapping[str, str] = field(default_factory=dict)


def load(
    project: Project, name: str, host_platform: str, overrides: Overrides | None = None
) -> tuple[ImageDefinition, ...]:
    """Reads the definition ``name`` and its parents, outermost parent first, each with the ``overrides`` it takes.

    Raises FileProblemsError for a parent that does not exist, is for another platform or leads back to its own child,
    UsageError for an override that none of them takes; otherwise raises as ``image.load`` does.
    """
    chain = _chain(project, name, host_platform)
    if overrides is None:
        return chain
    argument_names = {key for definition in chain for key in definition.args}
    for key in overrides.args:
        if key not in argument_names:
            raise UsageError(
                f"{name} has no argument `{key}`", hint=f"it has: {', '.join(sorted(argument_names)) or 'none'}"
            )
    return tuple(_overridden(definition, overrides) for definition in chain)


def build_jobs(settings: Mapping[str, str]) -> int | None:
    """Returns the number of compilers that ``--set`` asks for, None where it does not. Raises UsageError for one that
    is no number."""
    text = settings.get(BUILD_JOBS)
    if text is not None and not re.fullmatch("[1-9][0-9]{0,3}", text):
        raise UsageError(f"`--set {BUILD_JOBS}={text}` is no number of jobs: 1 or more")
    return int(text) if text else None


def _overridden(definition: ImageDefinition, overrides: Overrides) -> ImageDefinition:
    own = {key: yaml_file.load(value, "--set") for key, value in overrides.args.items() if key in definition.args}
    for key, value in own.items():
        if not isinstance(value, image.ArgumentValue):
            raise UsageError(f"`--set {key}={overrides.args[key]}` is not one plain value")
    build_jobs(overrides.args)
    # The steps that compile get it as they run: another number makes no other image. Only a template that has it in its
    # own text takes it as an argument.
    if BUILD_JOBS not in definition.template:
        own.pop(BUILD_JOBS, None)
    return replace(definition, platform=overrides.platform or definition.platform, args={**definition.args, **own})


def _chain(project: Project, name: str, host_platform: str) -> tuple[ImageDefinition, ...]:
    chain = [image.load(project, name, host_platform)]
    while chain[0].parent:
        child, parent = chain[0], chain[0].parent
        if parent not in image.names(project):
            raise _wrong_from(project, child, f"there is no definition `{parent}`")
        if parent in {definition.name for definition in chain}:
            raise _wrong_from(project, child, f"`{parent}` is built on this one: a cycle")
        base = image.load(project, parent, host_platform)
        if base.platform != child.platform:
            raise _wrong_from(project, child, f"{child.name} is for {child.platform}, {parent} for {base.platform}")
        chain.insert(0, base)
    return tuple(chain)


def _wrong_from(project: Project, definition: ImageDefinition, message: str) -> FileProblemsError:
    hint = f"definitions here: {', '.join(image.names(project))}"
    return FileProblemsError(
        (Problem(image.location(project, definition.name, "from"), f"`from`: {message}"),), hint=hint
    )

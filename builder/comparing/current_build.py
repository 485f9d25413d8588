"""Comparison of a numbered image with what a build of its recipe or definition would make today."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.building import planning, resolution
from builder.building.request import BuildRequest
from builder.definitions import image_chain, target
from builder.definitions.mods import mod_reading
from builder.engine.client import versions
from builder.errors import FileProblemsError
from builder.events import ignore
from builder.numbered import build_directory
from builder.plan import explain

if TYPE_CHECKING:
    from builder.lock.model import ImageName, NumberedImage
    from builder.project import Project
    from builder.workspace import Workspace


@dataclass(frozen=True)
class OriginalBuild:
    """The build that an image came from, as far as its record shows: ``target`` is its recipe or its definition.

    ``mods`` are those in the image that neither of these requests today (they were given with ``--mod``, or the recipe
    has dropped them since); ``platform`` is empty if a build without ``--platform`` is for the same one.
    """

    target: str
    mods: tuple[str, ...]
    platform: str

    @property
    def command(self) -> str:
        """The command that does this build."""
        mods = "".join(f" --mod {name}" for name in self.mods)
        return f"builder build {self.target}{mods}" + (f" --platform {self.platform}" if self.platform else "")


def original_build(workspace: Workspace, name: ImageName, image: NumberedImage) -> OriginalBuild:
    """Returns the build that would make the image ``name`` today. Raises the errors of its recipe and definitions, and
    EngineError if no engine answers."""
    text = image.recipe or image.definition
    build_target = target.find(workspace.project, text)
    definition = target.definition_of(workspace.project, build_target)
    chain = image_chain.load(workspace.project, definition, versions.platform(workspace.engine))
    requested = {mod_reading.name_of(mod) for definition in chain for mod in definition.mods}
    requested |= {mod_reading.name_of(mod) for mod in (build_target.recipe.mods if build_target.recipe else ())}
    existing = mod_reading.names(workspace.project)
    mods = tuple(mod for mod in _baked_mods(workspace.project, name, image) if mod not in requested and mod in existing)
    return OriginalBuild(text, mods, "" if chain[-1].platform == image.platform else image.platform)


def reasons(workspace: Workspace, name: ImageName, image: NumberedImage, build: OriginalBuild) -> tuple[str, ...]:
    """Returns the inputs of ``build``, done with the pins as they are, that differ from those of the image; none if it
    would make the same image. Raises what `resolution.resolve` and `planning.plan_all` raise."""
    request = BuildRequest((build.target,), build.mods, platform=image.platform, locked=True)
    quiet = replace(workspace, report=ignore)
    (planned,) = planning.plan_all(quiet, resolution.resolve(quiet, request))
    if planned.plan.input_hash == image.input_hash:
        return ()
    try:
        before = build_directory.read(workspace.project, name).steps
    except FileProblemsError:
        return ("its inputs",)
    return explain.changes(before, planned.plan.steps)


def _baked_mods(project: Project, name: ImageName, image: NumberedImage) -> tuple[str, ...]:
    """Returns the mods of an image, in the order in which they were baked, as far as its build directory shows."""
    try:
        order = tuple(build_directory.read(project, name).mods)
    except FileProblemsError:
        order = ()
    return (*(mod for mod in order if mod in image.mods), *(mod for mod in image.mods if mod not in order))

"""What a build would make today of what a numbered image was built from, and the command that builds it again."""

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
    """The build that an image came from, as far as the record tells: ``target`` is its recipe, or its definition.

    ``mods`` are those in it that neither of these asks for today (``--mod`` gave them, or the recipe has dropped them
    since); ``platform`` is empty where a build without ``--platform`` is for the same one.
    """

    target: str
    mods: tuple[str, ...]
    platform: str

    @property
    def command(self) -> str:
        """What to type."""
        mods = "".join(f" --mod {name}" for name in self.mods)
        return f"builder build {self.target}{mods}" + (f" --platform {self.platform}" if self.platform else "")


def original_build(workspace: Workspace, name: ImageName, image: NumberedImage) -> OriginalBuild:
    """The build that would make the image called ``name`` today. Raises what its recipe and definitions have to say,
    and EngineError where no engine answers."""
    text = image.recipe or image.definition
    build_target = target.find(workspace.project, text)
    chain = image_chain.load(workspace.project, build_target.definition, versions.platform(workspace.engine))
    requested = {mod_reading.name_of(mod) for definition in chain for mod in definition.mods}
    requested |= {mod_reading.name_of(mod) for mod in (build_target.recipe.mods if build_target.recipe else ())}
    existing = mod_reading.names(workspace.project)
    mods = tuple(mod for mod in _baked_mods(workspace.project, name, image) if mod not in requested and mod in existing)
    return OriginalBuild(text, mods, "" if chain[-1].platform == image.platform else image.platform)


def reasons(workspace: Workspace, name: ImageName, image: NumberedImage, build: OriginalBuild) -> tuple[str, ...]:
    """The inputs that differ from those of the image where ``build`` is done with the pins as they are; none where it
    makes the same image. Raises what
    `resolution.resolve` and `planning.plan_all` do."""
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
    """The mods of an image, in the order in which they were baked where its build directory tells."""
    try:
        order = tuple(build_directory.read(project, name).mods)
    except FileProblemsError:
        order = ()
    return (*(mod for mod in order if mod in image.mods), *(mod for mod in image.mods if mod not in order))

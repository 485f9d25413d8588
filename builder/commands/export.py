"""The export command: writes how a recipe or a model is served in the formats of other tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions.recipes import cluster, command, container
from builder.errors import UsageError
from builder.lock import reading
from builder.serving import image_selection
from builder.serving.exports import compose, opencode, recipe, script
from builder.serving.image_selection import UnnumberedImage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from builder.definitions.recipes.command import ServeCommand
    from builder.project import Project
    from builder.serving.image_selection import ServedImage

# The formats that describe one container, which serves alone.
_ONE_CONTAINER = ("compose", "script")


@dataclass(frozen=True)
class ExportRequest:
    """A request to export. ``text`` names a recipe or a model; ``overrides`` and ``extra`` change its command;
    ``address`` is the host under which clients reach the server."""

    text: str
    format: str
    overrides: Mapping[str, str]
    extra: Sequence[str] = ()
    address: str = "127.0.0.1"


@dataclass(frozen=True)
class ExportedRecipe:
    """The text, the image that it names, and warnings for the user."""

    text: str
    image: str
    warnings: tuple[str, ...]


def run(project: Project, request: ExportRequest, environ: Mapping[str, str]) -> ExportedRecipe:
    """Writes how the recipe or model is served, as text. No engine is asked, and nothing is started.

    Raises UsageError and FileProblemsError for what cannot be rendered, ImageStateError where no image was built yet by
    the definition that makes them.
    """
    lock = reading.of(project)
    selected = image_selection.select_any(project, lock, request.text)
    if isinstance(selected, UnnumberedImage) and selected.definition:
        selected = image_selection.for_recipe(lock, selected.recipe)
    if request.format in _ONE_CONTAINER:
        cluster.require_fit(selected.recipe, 1)
    rendered = command.render(selected.recipe, request.overrides, request.extra)
    warnings = [image_selection.warning(selected)]
    if request.format == "recipe":
        left = "left for the launcher to apply"
        warnings += [f"{mod} is not in {selected.name}: {left}" for mod in selected.missing_mods]
    else:
        warnings.append(image_selection.mods_warning(selected))
    text = _text(project, request, environ, selected, rendered)
    return ExportedRecipe(text, selected.name, tuple(filter(None, warnings)))


def _text(
    project: Project,
    request: ExportRequest,
    environ: Mapping[str, str],
    selected: ServedImage,
    rendered: ServeCommand,
) -> str:
    if request.format == "opencode":
        if rendered.port is None or not rendered.served:
            raise UsageError(f"{selected.recipe.file}: its command does not say on which port it serves which model")
        return opencode.render(selected.recipe, rendered, request.address)
    if request.format == "recipe":
        if request.overrides or request.extra:
            raise UsageError("`--format recipe` takes the recipe as it is: change its defaults instead")
        return recipe.render(selected.recipe, rendered, selected.name, list(selected.missing_mods))
    of_image = image_selection.serve_settings(project, selected)
    settings = container.settings(selected.recipe, rendered, of_image, selected.run_from, environ)
    render = compose.render if request.format == "compose" else script.render
    return render(settings, environ.get("HOME", "").rstrip("/"))


def write(path: Path, text: str, *, executable: bool) -> None:
    """Puts the text in place in one step: whoever reads the file meanwhile has the old one or the new one. Raises
    UsageError where it cannot be written."""
    from builder.storage import atomic_file

    try:
        atomic_file.write(path, text.encode(), mode=0o755 if executable else 0o644)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None

"""The export command: writes how a recipe or a model is served in the formats of other tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions.recipes import command
from builder.errors import UsageError
from builder.lock import reading
from builder.serving import image_selection, preparation
from builder.serving.exports import compose, opencode, recipe, script
from builder.serving.image_selection import UnnumberedImage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from builder.definitions.recipes.arguments import Backend
    from builder.project import Project
    from builder.serving.image_selection import ServedImage

# The formats that describe containers: one for each node.
_OF_CONTAINERS = {"compose": ".yaml", "script": ".sh"}


@dataclass(frozen=True)
class ExportRequest:
    """A request to export. ``text`` names a recipe or a model; ``overrides`` and ``extra`` change its command;
    ``address`` is the host under which clients reach the server. ``nodes`` of builder.yaml serve it, joined by
    ``backend``."""

    text: str
    format: str
    overrides: Mapping[str, str]
    extra: Sequence[str] = ()
    address: str = "127.0.0.1"
    nodes: Sequence[str] = ()
    backend: Backend | None = None


@dataclass(frozen=True)
class ExportedText:
    """A text for one node, in a file of that name; both are empty where there is only one."""

    node: str
    file: str
    text: str


@dataclass(frozen=True)
class ExportedRecipe:
    """The texts, the one for the head node first, the image that they name, and warnings for the user."""

    texts: tuple[ExportedText, ...]
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
    warnings = [image_selection.warning(selected)]
    if request.format == "recipe":
        left = "left for the launcher to apply"
        warnings += [f"{mod} is not in {selected.name}: {left}" for mod in selected.missing_mods]
    else:
        warnings.append(image_selection.mods_warning(selected))
    if request.format in _OF_CONTAINERS:
        texts, note = _of_containers(project, request, environ, selected)
        warnings.append(note)
    elif request.nodes or request.backend:
        raise UsageError("`--node` and `--ray` are for `--format compose` and `--format script`")
    else:
        texts = (ExportedText("", "", _of_server(request, selected)),)
    return ExportedRecipe(texts, selected.name, tuple(filter(None, warnings)))


def _of_server(request: ExportRequest, selected: ServedImage) -> str:
    rendered = command.render(selected.recipe, request.overrides, request.extra)
    if request.format == "opencode":
        if rendered.port is None or not rendered.served:
            raise UsageError(f"{selected.recipe.file}: its command does not say on which port it serves which model")
        return opencode.render(selected.recipe, rendered, request.address)
    if request.overrides or request.extra:
        raise UsageError("`--format recipe` takes the recipe as it is: change its defaults instead")
    return recipe.render(selected.recipe, rendered, selected.name, list(selected.missing_mods))


def _of_containers(
    project: Project, request: ExportRequest, environ: Mapping[str, str], selected: ServedImage
) -> tuple[tuple[ExportedText, ...], str]:
    """The text for each node, and a note on nodes that are not needed."""
    serving = preparation.ServeRequest(
        request.text, request.overrides, request.extra, tuple(request.nodes), request.backend
    )
    planned = preparation.settings(project, selected, serving, environ)
    render = compose.render if request.format == "compose" else script.render
    home = environ.get("HOME", "").rstrip("/")
    texts = [render(settings, home) for settings in planned.containers]
    if len(texts) == 1:
        return (ExportedText("", "", texts[0]),), planned.note
    ending = _OF_CONTAINERS[request.format]
    named = zip(planned.nodes, texts, strict=True)
    return tuple(ExportedText(node.name, f"{node.name}{ending}", text) for node, text in named), planned.note


def write(path: Path, exported: ExportedRecipe, *, executable: bool) -> tuple[Path, ...]:
    """Writes the text to the file ``path``; several go to files of their own in the folder ``path``, which is made.

    Each is put in place in one step: whoever reads a file meanwhile has the old one or the new one. Returns the files.
    Raises UsageError where one cannot be written.
    """
    from builder.storage import atomic_file

    files = tuple(path / each.file if each.file else path for each in exported.texts)
    try:
        if len(files) > 1:
            path.mkdir(exist_ok=True)
        for file, each in zip(files, exported.texts, strict=True):
            atomic_file.write(file, each.text.encode(), mode=0o755 if executable else 0o644)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    return files

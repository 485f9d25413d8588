"""The export command: writes how a recipe or a model is served in the formats of other tools."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.commands.shared.export_formats import FORMATS
from builder.definitions.recipes import command, publishing
from builder.definitions.requested_options import NOTHING_REQUESTED, RequestedOptions
from builder.errors import BuilderError, UsageError
from builder.lock import reading
from builder.serving import image_selection, preparation, server_options
from builder.serving.exports import compose, litellm, llama_swap, opencode, recipe, routing, script
from builder.serving.exports.routing import RoutedModel
from builder.serving.image_selection import UnnumberedImage
from builder.serving.preparation import ServeRequest
from builder.serving.running import PROJECT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from builder.definitions.recipes.arguments import Backend
    from builder.definitions.recipes.container_options import ContainerOptions
    from builder.lock.model import Lock
    from builder.project import Project
    from builder.serving.image_selection import ServedImage
    from builder.serving.preparation import ServerSettings


@dataclass(frozen=True)
class ExportRequest:
    """A request to export. ``text`` names a recipe or a model, None means all models that are paired; ``overrides`` and
    ``extra`` change its command; ``address`` is the host under which clients reach the server. ``nodes`` of
    builder.yaml serve it, joined by ``backend``; ``container`` are the options of its container."""

    text: str | None
    format: str
    overrides: Mapping[str, str]
    extra: Sequence[str] = ()
    address: str = "127.0.0.1"
    nodes: Sequence[str] = ()
    backend: Backend | None = None
    container: RequestedOptions = NOTHING_REQUESTED


@dataclass(frozen=True)
class ExportedText:
    """A text for one node, in a file of that name; both are empty where there is only one."""

    node: str
    file: str
    text: str


@dataclass(frozen=True)
class ExportedRecipe:
    """The texts, the one for the head node first, the images that they name, and warnings for the user."""

    texts: tuple[ExportedText, ...]
    image: str
    warnings: tuple[str, ...]


def run(project: Project, request: ExportRequest, environ: Mapping[str, str]) -> ExportedRecipe:
    """Writes how the recipe or model is served, as text. No engine is asked, and nothing is started.

    Raises UsageError and FileProblemsError for what cannot be rendered, ImageStateError where no image was built yet by
    the definition that makes them.
    """
    if FORMATS[request.format].of_all:
        return _routed(project, request, environ)
    if request.text is None:
        raise UsageError(f"`--format {request.format}` is for one model: name it, or a recipe")
    lock = reading.of(project)
    selected = image_selection.select_any(project, lock, request.text)
    if isinstance(selected, UnnumberedImage) and selected.definition:
        selected = image_selection.for_recipe(lock, selected.recipe)
    warnings = [image_selection.warning(selected)]
    if request.format == "recipe":
        left = "left for the launcher to apply"
        warnings += [f"{mod} is not in {selected.name}: {left}" for mod in selected.missing_mods]
        if image_selection.serve_settings(project, selected).keep_entrypoint:
            warnings.append(f"{selected.name} needs its own entrypoint: start it with the launcher's --keep-entrypoint")
    else:
        warnings.append(image_selection.mods_warning(selected))
    if FORMATS[request.format].ending:
        planned = preparation.settings(project, selected, _serving(request, request.text), environ)
        warnings += [planned.note, *_not_written(planned.options)]
        texts = _of_containers(request.format, planned, environ.get("HOME", "").rstrip("/"))
    elif request.nodes or request.backend:
        raise UsageError("`--node` and `--ray` are for `--format compose` and `--format script`")
    else:
        options, changed = server_options.settle(project, selected.recipe, request.container, environ)
        if request.format == "recipe" and options.volumes:
            mounts = " ".join(f"-v {mount}" for mount in options.volumes)
            warnings.append(f"other launchers know no `volumes` of a recipe: start yours with {mounts}")
        texts = (ExportedText("", "", _of_server(request, replace(selected, recipe=changed), options)),)
    return ExportedRecipe(texts, selected.name, tuple(filter(None, warnings)))


def _not_written(options: ContainerOptions) -> list[str]:
    wanted = (name for name, value in options.env.items() if value is None)
    return [f"the value of {name} is not written: whoever uses the file has it set" for name in wanted]


def _of_server(request: ExportRequest, selected: ServedImage, options: ContainerOptions) -> str:
    rendered = command.render(selected.recipe, request.overrides, request.extra)
    if request.format == "opencode":
        if rendered.port is None or not rendered.served:
            raise UsageError(f"{selected.recipe.file}: its command does not say on which port it serves which model")
        published = publishing.of_server(options.publish, rendered.port)
        reached = replace(rendered, port=published.port) if published else rendered
        return opencode.render(selected.recipe, reached, request.address)
    if request.overrides or request.extra or not request.container.is_empty:
        raise UsageError("`--format recipe` takes the recipe as it is: change its defaults instead")
    return recipe.render(selected.recipe, rendered, selected.name, list(selected.missing_mods))


def _routed(project: Project, request: ExportRequest, environ: Mapping[str, str]) -> ExportedRecipe:
    """The configuration of a router for one model, or for all that are paired; one that cannot be served is left out,
    and told. Raises UsageError where none is left."""
    if request.nodes or request.backend:
        raise UsageError(f"`--format {request.format}` is for servers on this machine: leave `--node` and `--ray` out")
    lock = reading.of(project)
    models, warnings = [], []
    for text in [request.text] if request.text else sorted(lock.models):
        try:
            routed, notes = _routed_model(project, lock, replace(request, text=text), text, environ)
        except BuilderError as error:
            if request.text:
                raise
            warnings.append(f"{text} is left out: {error.message.splitlines()[0]}")
        else:
            models.append(routed)
            warnings += notes
    if not models:
        hint = "`builder build RECIPE` pairs its model with the image that it makes"
        raise UsageError("\n".join(["no model that is paired can be served", *warnings]), hint=hint)
    warnings += routing.shared_ports(models)
    if request.format == "litellm":
        text = litellm.render(models, request.address)
    else:
        text = llama_swap.render(models, environ.get("HOME", "").rstrip("/"))
    images = ", ".join(dict.fromkeys(model.image for model in models))
    return ExportedRecipe((ExportedText("", "", text),), images, tuple(dict.fromkeys(warnings)))


def _routed_model(
    project: Project, lock: Lock, request: ExportRequest, text: str, environ: Mapping[str, str]
) -> tuple[RoutedModel, list[str]]:
    """A model as a router needs it, and notes. Raises UsageError for one that several nodes serve, or whose port or
    name its command does not say."""
    selected = image_selection.select_any(project, lock, text)
    if isinstance(selected, UnnumberedImage) and selected.definition:
        selected = image_selection.for_recipe(lock, selected.recipe)
    planned = preparation.settings(project, selected, _serving(request, text), environ)
    if len(planned.containers) > 1 or planned.nodes:
        raise UsageError(f"{selected.recipe.file} is served by several nodes, which no router starts")
    (container,) = planned.containers
    rendered = command.render(selected.recipe, request.overrides, request.extra)
    published = publishing.of_server(planned.options.publish, rendered.port)
    port = published.port if published else rendered.port
    if port is None:
        raise UsageError(f"{selected.recipe.file}: its command does not say on which port it serves")
    labelled = replace(container, labels={**container.labels, PROJECT: str(project.root)})
    model = selected.recipe.model or rendered.model or selected.recipe.name
    notes = [image_selection.warning(selected), image_selection.mods_warning(selected), *_not_written(planned.options)]
    return RoutedModel(model, rendered.served, selected.name, labelled, port), [note for note in notes if note]


def _serving(request: ExportRequest, text: str) -> ServeRequest:
    nodes = tuple(request.nodes)
    return ServeRequest(text, request.overrides, request.extra, nodes, request.backend, request.container)


def _of_containers(kind: str, planned: ServerSettings, home: str) -> tuple[ExportedText, ...]:
    """The text for each node."""
    render = compose.render if kind == "compose" else script.render
    texts = [render(settings, home) for settings in planned.containers]
    if len(texts) == 1:
        return (ExportedText("", "", texts[0]),)
    ending = FORMATS[kind].ending
    named = zip(planned.nodes, texts, strict=True)
    return tuple(ExportedText(node.name, f"{node.name}{ending}", text) for node, text in named)


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

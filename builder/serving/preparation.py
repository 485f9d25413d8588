"""Preparation of a server: the containers that `run` will start, planned and checked before anything is started."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder import redaction
from builder.definitions import configuration
from builder.definitions.recipes import arguments, cluster, cluster_guard, command, container, container_options
from builder.definitions.recipes.container import LABEL
from builder.definitions.recipes.volumes import Mount
from builder.definitions.requested_options import NOTHING_REQUESTED, RequestedOptions
from builder.engine import images
from builder.errors import ImageStateError
from builder.lock import reading
from builder.numbered import adopted
from builder.serving import checkpoint_weights, image_selection, lookup, model_checks, node_models, server_options
from builder.serving.image_selection import SelectedImage, UnnumberedImage
from builder.serving.machine_memory import MemoryRule
from builder.serving.running import DIGEST, NODES, PROJECT, REQUEST, ServingEngine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.definitions.configuration import Node
    from builder.definitions.recipes.arguments import Backend
    from builder.definitions.recipes.cluster import Cluster
    from builder.definitions.recipes.command import ServeCommand
    from builder.definitions.recipes.container import ContainerSettings
    from builder.definitions.recipes.container_options import ContainerOptions
    from builder.definitions.recipes.recipe import Recipe
    from builder.engine.images import ImageDetails
    from builder.lock.model import ImageName
    from builder.project import Project
    from builder.serving.image_selection import ServedImage
    from builder.workspace import Workspace


@dataclass(frozen=True)
class ServeRequest:
    """A request to serve ``text``, a recipe or a model. ``overrides`` and ``extra`` change its command; ``nodes`` of
    builder.yaml serve it, of which the first answers requests, or this machine's own engine if there are none;
    ``backend`` joins several nodes in place of the recipe's. ``container`` are the options of its container; with
    ``force`` it is started where the memory does not suffice. ``image`` is the number that serves, where it is not the
    one that is paired."""

    text: str
    overrides: Mapping[str, str]
    extra: Sequence[str] = ()
    nodes: Sequence[str] = ()
    backend: Backend | None = None
    container: RequestedOptions = NOTHING_REQUESTED
    force: bool = False
    image: ImageName | None = None


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a server's containers, of which the first answers requests, each on its node; ``nodes`` is empty
    for one on the user's own engine. ``note`` says which nodes are not needed. ``options`` are those of builder.yaml,
    the recipe and the request, which the containers have; ``command`` is that of the first."""

    nodes: tuple[Node, ...]
    containers: tuple[ContainerSettings, ...]
    note: str
    options: ContainerOptions
    command: ServeCommand


@dataclass(frozen=True)
class PlannedContainer:
    """A container to create, and the engine to create it on; ``image_id`` is that engine's id of the checked image."""

    engine: ServingEngine
    settings: ContainerSettings
    image_id: str


@dataclass(frozen=True)
class PreparedServer:
    """The selected image and the planned containers, of which the first answers requests; ``note`` says which nodes are
    not needed. ``secrets`` are values of variables that the containers take from the environment; ``memory`` is the
    rule of how much they may take."""

    selection: ServedImage
    containers: tuple[PlannedContainer, ...]
    memory: MemoryRule
    note: str = ""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def head(self) -> PlannedContainer:
        return self.containers[0]

    @property
    def port(self) -> str:
        """The port that it will answer on; empty where its command names none."""
        return self.head.settings.labels.get(f"{container.LABEL}.port", "")


def prepare(workspace: Workspace, request: ServeRequest, selection: ServedImage | None = None) -> PreparedServer:
    """Plans the containers, and checks everything that can be wrong in files and images. A ``selection`` serves in
    place of the image that the request leads to.

    Raises UsageError and FileProblemsError for a command that cannot be rendered, ImageStateError if one of the engines
    lacks the image that images.lock records, or the one that has no number; NoImageHelpsError for a model that is not
    to be had, or takes no context of that length.
    """
    selection = selection or selected(workspace.project, request)
    planned = settings(workspace.project, selection, request, workspace.environment)
    container_options.require_values(planned.options, workspace.environment)
    options = {
        "overrides": dict(request.overrides),
        "extra": list(request.extra),
        "nodes": list(request.nodes),
        "backend": request.backend,
        "container": container_options.kept(request.container, workspace.environment, Path.cwd()),
    }
    labels = {PROJECT: str(workspace.project.root), REQUEST: json.dumps(options)}
    engines = tuple(lookup.engine_of_node(workspace.environment, node) for node in planned.nodes)
    engines = engines or (ServingEngine(workspace.engine),)
    details, fingerprint = _require_image(selection, engines)
    entrypoint = tuple(details[0].config.get("Entrypoint", ()))
    keeps = image_selection.serve_settings(workspace.project, selection, entrypoint).keep_entrypoint
    all_settings = [
        _with_digest(replace(each, labels={**each.labels, **labels}, keep_entrypoint=keeps), fingerprint)
        for each in planned.containers
    ]
    containers = tuple(map(PlannedContainer, engines, all_settings, [image.id for image in details]))
    endpoints = (engine.endpoint for engine in engines)
    server_options.require_usable(tuple(zip(all_settings, endpoints, strict=True)), planned.options)
    if not planned.nodes and workspace.engine.host.startswith("unix://"):
        model_checks.require(planned.command, all_settings[0], workspace.environment, selection.recipe.revision)
    rule = MemoryRule(configuration.load(workspace.project).reserve, request.force)
    return PreparedServer(selection, containers, rule, planned.note, planned.options.secrets)


def selected(project: Project, request: ServeRequest) -> ServedImage:
    lock = reading.of(project)
    selection = image_selection.select_any(project, lock, request.text)
    return image_selection.with_number(lock, selection.recipe, request.image) if request.image else selection


def settings(
    project: Project, selection: ServedImage, request: ServeRequest, environ: Mapping[str, str]
) -> ServerSettings:
    """Plans the containers that serve ``selection``, without asking any engine. Raises UsageError and
    FileProblemsError for a command that cannot be rendered, and for nodes that do not fit it."""
    if selection.recipe.checkpoint:
        weights = checkpoint_weights.served(project, environ, reading.of(project), selection)
        if weights:
            selection = replace(selection, recipe=weights.recipe)
            request = replace(request, extra=(*request.extra, *weights.extra))
    nodes = _nodes(project, selection, request.nodes)
    cluster.require_several(request.backend, len(nodes))
    options, recipe = server_options.settle(project, selection.recipe, request.container, environ, len(nodes))
    together = _cluster(recipe, nodes, request) if len(nodes) > 1 else None
    if together:
        nodes = tuple(member.node for member in together.members)
    rendered = together.command if together else command.render(recipe, request.overrides, request.extra)
    # vLLM writes its arguments into its log, of which a part is shown and kept where it does not start.
    for key in (arguments.option(rendered.words, "--api-key"), rendered.env.get("VLLM_API_KEY")):
        redaction.learn(key or "")
    of_image = image_selection.serve_settings(project, selection)
    alike = container.settings(recipe, rendered, of_image, selection.run_from, environ, options)
    containers = [_with_models(alike, node, environ) for node in nodes] or [alike]
    if together:
        members = list(zip(containers, together.members, strict=True))
        containers = [cluster.member_settings(each, member, together.backend) for each, member in members]
        head = together.members[0].address
        if len(containers) > 1:
            containers = [
                cluster_guard.guarded(each, rank, head, together.port) for rank, each in enumerate(containers)
            ]
    containers = [server_options.completed(each, options, request.container) for each in containers]
    names = ",".join(node.name for node in nodes)
    if names:
        containers = [replace(each, labels={**each.labels, NODES: names}) for each in containers]
    return ServerSettings(nodes, tuple(containers), together.note if together else "", options, rendered)


def _nodes(project: Project, selection: ServedImage, requested: Sequence[str]) -> tuple[Node, ...]:
    configured = configuration.load(project)
    nodes = tuple(configured.node(name) for name in dict.fromkeys(requested))
    if selection.recipe.cluster_only and not requested:
        nodes = configured.nodes
    cluster.require_fit(selection.recipe, len(nodes))
    return nodes


def _cluster(recipe: Recipe, nodes: Sequence[Node], request: ServeRequest) -> Cluster:
    backend = cluster.backend_of(recipe, request.backend)
    return cluster.of(recipe, request.overrides, request.extra, nodes, backend)


def _with_models(alike: ContainerSettings, node: Node, environ: Mapping[str, str]) -> ContainerSettings:
    """Replaces the mount of the models for a node that keeps them elsewhere; its folder holds the hub's folder, too."""
    inside = f"{container.HOME}/.cache/huggingface"
    models = node_models.folder(environ, node)
    if models is None or any(mount.target == inside and not mount.ours for mount in alike.mounts):
        return alike
    others = tuple(mount for mount in alike.mounts if not (mount.ours and mount.target.startswith(inside)))
    return replace(alike, mounts=(Mount(models, inside), *others))


def _with_digest(planned: ContainerSettings, fingerprint: str) -> ContainerSettings:
    """Adds the label with a digest of everything that decides how the container serves."""
    # By the server's name: earlier releases gave the container that name, too.
    settings = replace(planned, name=planned.labels[LABEL], labels={})
    content = json.dumps([fingerprint, asdict(settings)], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()
    return replace(planned, labels={**planned.labels, DIGEST: digest})


def _require_image(selection: ServedImage, engines: Sequence[ServingEngine]) -> tuple[tuple[ImageDetails, ...], str]:
    """Returns the image as each engine has it, and its fingerprint, which is the one that images.lock records.

    Raises ImageStateError if the image is missing from one of them, or another.
    """
    name = selection.name
    expected = selection.record.fingerprint if isinstance(selection, SelectedImage) else ""
    details, problems = [], []
    for engine in engines:
        where = f"node {engine.node}" if engine.node else "this engine"
        image = images.inspect(engine.endpoint, name)
        expected = expected or (images.fingerprint(image) if image else "")
        if image is None:
            problems.append(f"{name} is missing from {where}")
        elif images.fingerprint(image) != expected and isinstance(selection, SelectedImage):
            problems.append(f"{name} is not the image that images.lock records: its tag was moved in {where}")
        elif images.fingerprint(image) != expected:
            problems.append(f"{name} is another image in {where} than in the first engine")
        else:
            details.append(image)
    if problems:
        has_nodes = any(engine.node for engine in engines)
        hint = f"`builder copy {name} NODE` brings it to a node" if has_nodes else _hint(selection)
        if has_nodes and isinstance(selection, UnnumberedImage):
            hint = f"`builder adopt {name}` gives it a number, and `builder copy` brings that to a node"
        raise ImageStateError("\n".join([f"{problems[0]}: nothing was started", *problems[1:]]), hint=hint)
    return tuple(details), expected


def _hint(selection: ServedImage) -> str:
    """Tells the ways to an image that this engine lacks."""
    if isinstance(selection, SelectedImage):
        target = selection.recipe.model or selection.recipe.file
        back = adopted.way_back(selection.image, selection.record)
        return f"{back}; `builder rollback {target}` goes to the one before"
    pull = f"`docker pull {selection.name}` gets it where a registry has it"
    return f"`builder build {selection.recipe.file}` builds it, or {pull}" if selection.definition else pull

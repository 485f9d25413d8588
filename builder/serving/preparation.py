"""Preparation of a server: the containers that `run` will start, planned and checked before anything is started."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from builder.definitions import configuration, serving
from builder.definitions.recipes import cluster, container
from builder.engine import images
from builder.errors import ImageStateError, UsageError
from builder.lock import reading
from builder.serving import image_selection, lookup
from builder.serving.running import DIGEST, NODES, PROJECT, REQUEST, ServingEngine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.definitions.configuration import Node
    from builder.definitions.recipes.container import ContainerSettings
    from builder.project import Project
    from builder.serving.image_selection import SelectedImage
    from builder.workspace import Workspace


@dataclass(frozen=True)
class ServeRequest:
    """A request to serve ``text``, a recipe or a model. ``overrides`` and ``extra`` change its command; ``nodes`` of
    builder.yaml serve it, of which the first answers requests, or this machine's own engine if there are none."""

    text: str
    overrides: Mapping[str, str]
    extra: Sequence[str] = ()
    nodes: Sequence[str] = ()


@dataclass(frozen=True)
class PlannedContainer:
    """A container to create, and the engine to create it on; ``image_id`` is that engine's id of the checked image."""

    engine: ServingEngine
    settings: ContainerSettings
    image_id: str


@dataclass(frozen=True)
class PreparedServer:
    """The selected image and the planned containers, of which the first answers requests."""

    selection: SelectedImage
    containers: tuple[PlannedContainer, ...]

    @property
    def head(self) -> PlannedContainer:
        return self.containers[0]


def prepare(workspace: Workspace, request: ServeRequest) -> PreparedServer:
    """Plans the containers, and checks everything that can be wrong in files and images.

    Raises UsageError and FileProblemsError for a command that cannot be rendered, ImageStateError if one of the engines
    lacks the image that images.lock records.
    """
    selection = image_selection.select(workspace.project, reading.of(workspace.project), request.text)
    nodes = _nodes(workspace.project, selection, request.nodes)
    all_settings = _settings(workspace.project, selection, nodes, request, workspace.environment)
    engines = tuple(lookup.engine_of_node(workspace.environment, node) for node in nodes)
    engines = engines or (ServingEngine(workspace.engine),)
    image_ids = _require_recorded_image(selection, engines)
    containers = tuple(map(PlannedContainer, engines, all_settings, image_ids))
    return PreparedServer(selection, containers)


def _nodes(project: Project, selection: SelectedImage, requested: Sequence[str]) -> tuple[Node, ...]:
    configured = configuration.load(project)
    nodes = tuple(configured.node(name) for name in dict.fromkeys(requested))
    if selection.recipe.cluster_only and not requested:
        nodes = configured.nodes
    cluster.require_fit(selection.recipe, len(nodes))
    return nodes


def _settings(
    project: Project, selection: SelectedImage, nodes: Sequence[Node], request: ServeRequest, environ: Mapping[str, str]
) -> tuple[ContainerSettings, ...]:
    addresses = tuple(map(_address, nodes)) if len(nodes) > 1 else ("",)
    commands = cluster.commands(selection.recipe, request.overrides, request.extra, addresses)
    serve_settings = serving.of(project, selection.record.definition)
    image = (selection.image.repository, selection.image.number)
    names = ",".join(node.name for node in nodes)
    options = {"overrides": dict(request.overrides), "extra": list(request.extra), "nodes": list(request.nodes)}
    all_settings = []
    for rank, command in enumerate(commands):
        settings = container.settings(selection.recipe, command, serve_settings, image, environ)
        if nodes:
            settings = _with_models(settings, nodes[rank])
        if len(nodes) > 1:
            backend = cluster.backend_of(commands[0])
            settings = cluster.member(settings, nodes[rank], rank, addresses[rank], backend)
        labels = {PROJECT: str(project.root), REQUEST: json.dumps(options), DIGEST: _digest(settings, selection)}
        labels |= {NODES: names} if names else {}
        all_settings.append(replace(settings, labels={**settings.labels, **labels}))
    return tuple(all_settings)


def _address(node: Node) -> str:
    """Returns the address at which the other nodes reach this one. Raises UsageError if it is not known."""
    from urllib.parse import urlsplit

    address = node.address or (urlsplit(node.engine).hostname if "://" in node.engine else None)
    if not address:
        raise UsageError(
            f"where the other nodes reach {node.name} is not known",
            hint=f"write it into {configuration.FILE}: `{node.name}: {{engine: {node.engine}, address: 10.0.0.1}}`",
        )
    return address


def _with_models(settings: ContainerSettings, node: Node) -> ContainerSettings:
    """Replaces the mount of the models for a node that keeps them elsewhere; its folder holds the hub's folder, too."""
    if node.models is None:
        return settings
    inside = f"{container.HOME}/.cache/huggingface"
    others = tuple(mount for mount in settings.mounts if not mount.target.startswith(inside))
    return replace(settings, mounts=(container.Mount(node.models, inside), *others))


def _digest(settings: ContainerSettings, selection: SelectedImage) -> str:
    """Returns a digest of everything that decides how the container serves."""
    content = json.dumps([selection.record.fingerprint, asdict(replace(settings, labels={}))], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _require_recorded_image(selection: SelectedImage, engines: Sequence[ServingEngine]) -> tuple[str, ...]:
    """Returns each engine's id of the image; raises ImageStateError if the image is missing there, or not the recorded
    one."""
    name = str(selection.image)
    ids, problems = [], []
    for engine in engines:
        where = f"node {engine.node}" if engine.node else "this engine"
        image = images.inspect(engine.endpoint, name)
        if image is None:
            problems.append(f"{name} is missing from {where}")
        elif images.fingerprint(image) != selection.record.fingerprint:
            problems.append(f"{name} is not the image that images.lock records: its tag was moved in {where}")
        else:
            ids.append(image.id)
    if problems:
        target = selection.recipe.model or selection.recipe.file
        here = f"`builder rebuild {name}` makes it again; `builder rollback {target}` goes to the one before"
        on_nodes = f"`builder copy {name} NODE` brings it to a node"
        hint = on_nodes if any(engine.node for engine in engines) else here
        raise ImageStateError("\n".join([f"{problems[0]}: nothing was started", *problems[1:]]), hint=hint)
    return tuple(ids)

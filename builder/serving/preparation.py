"""What shall serve: the containers that `run` starts, worked out and looked at before anything is started."""

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
    """``text`` names a recipe or a model. ``overrides`` and ``extra`` change its command; ``nodes`` of builder.yaml
    serve it, the first being the one that answers, or this machine's own engine where there are none."""

    text: str
    overrides: Mapping[str, str]
    extra: Sequence[str] = ()
    nodes: Sequence[str] = ()


@dataclass(frozen=True)
class PlannedContainer:
    """A container to be, and where; ``content`` is the engine's id of the image that was looked at."""

    engine: ServingEngine
    settings: ContainerSettings
    image_id: str


@dataclass(frozen=True)
class PreparedServer:
    """What serves, and its containers: the first is the one that answers."""

    selection: SelectedImage
    containers: tuple[PlannedContainer, ...]

    @property
    def head(self) -> PlannedContainer:
        return self.containers[0]


def prepare(workspace: Workspace, request: ServeRequest) -> PreparedServer:
    """Looks at everything that can be wrong in files and images.

    Raises UsageError and FileProblemsError for what cannot be rendered, ImageStateError where an engine that shall
    serve has not the image that images.lock records.
    """
    found = image_selection.select(workspace.project, reading.of(workspace.project), request.text)
    nodes = _nodes(workspace.project, found, request.nodes)
    all_settings = _settings(workspace.project, found, nodes, request, workspace.environment)
    places = tuple(lookup.engine_of_node(workspace.environment, node) for node in nodes) or (
        ServingEngine(workspace.engine),
    )
    contents = _require_content(found, places)
    wanted = tuple(map(PlannedContainer, places, all_settings, contents))
    return PreparedServer(found, wanted)


def _nodes(project: Project, found: SelectedImage, asked: Sequence[str]) -> tuple[Node, ...]:
    known = configuration.load(project)
    nodes = tuple(known.node(name) for name in dict.fromkeys(asked))
    if found.recipe.cluster_only and not asked:
        nodes = known.nodes
    cluster.require_fit(found.recipe, len(nodes))
    return nodes


def _settings(
    project: Project, found: SelectedImage, nodes: Sequence[Node], request: ServeRequest, environ: Mapping[str, str]
) -> tuple[ContainerSettings, ...]:
    addresses = tuple(map(_address, nodes)) if len(nodes) > 1 else ("",)
    commands = cluster.commands(found.recipe, request.overrides, request.extra, addresses)
    of_image = serving.of(project, found.record.definition)
    image = (found.image.repository, found.image.number)
    names = ",".join(node.name for node in nodes)
    asked = {"overrides": dict(request.overrides), "extra": list(request.extra), "nodes": list(request.nodes)}
    done = []
    for rank, command in enumerate(commands):
        one = container.settings(found.recipe, command, of_image, image, environ)
        if nodes:
            one = _with_models(one, nodes[rank])
        if len(nodes) > 1:
            one = cluster.member(one, rank, addresses[rank])
        own = {PROJECT: str(project.root), REQUEST: json.dumps(asked), DIGEST: _digest(one, found)}
        own |= {NODES: names} if names else {}
        done.append(replace(one, labels={**one.labels, **own}))
    return tuple(done)


def _address(node: Node) -> str:
    """Where the other nodes reach this one. Raises UsageError where nothing says so."""
    from urllib.parse import urlsplit

    said = node.address or (urlsplit(node.engine).hostname if "://" in node.engine else None)
    if not said:
        raise UsageError(
            f"where the other nodes reach {node.name} is not known",
            hint=f"write it into {configuration.FILE}: `{node.name}: {{engine: {node.engine}, address: 10.0.0.1}}`",
        )
    return said


def _with_models(settings: ContainerSettings, node: Node) -> ContainerSettings:
    """The mounts of a node that has its models elsewhere; what it mounts there holds the hub's folder too."""
    if node.models is None:
        return settings
    inside = f"{container.HOME}/.cache/huggingface"
    others = tuple(mount for mount in settings.mounts if not mount.target.startswith(inside))
    return replace(settings, mounts=(container.Mount(node.models, inside), *others))


def _digest(settings: ContainerSettings, found: SelectedImage) -> str:
    """One line for all that decides how it serves."""
    said = json.dumps([found.record.fingerprint, asdict(replace(settings, labels={}))], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()


def _require_content(found: SelectedImage, places: Sequence[ServingEngine]) -> tuple[str, ...]:
    """Each engine's id of the image, after a look that its content is the recorded one. Raises ImageStateError."""
    name = str(found.image)
    ids, wrong = [], []
    for place in places:
        where = f"node {place.node}" if place.node else "this engine"
        there = images.inspect(place.endpoint, name)
        if there is None:
            wrong.append(f"{name} is missing from {where}")
        elif images.fingerprint(there) != found.record.fingerprint:
            wrong.append(f"{name} is not the image that images.lock records: its tag was moved in {where}")
        else:
            ids.append(there.id)
    if wrong:
        what = found.recipe.model or found.recipe.file
        here = f"`builder rebuild {name}` makes it again; `builder rollback {what}` goes to the one before"
        on_nodes = f"`builder copy {name} NODE` brings it to a node"
        hint = on_nodes if any(place.node for place in places) else here
        raise ImageStateError("\n".join([f"{wrong[0]}: nothing was started", *wrong[1:]]), hint=hint)
    return tuple(ids)

"""Plans the containers of a server, and checks them before anything starts: the request, the plan, mods that are tried,
and the checks of image, volumes, earlyoom and model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builder.base import hub_cache, processes, redaction
from builder.base.errors import ImageStateError, ModelUnavailableError, NoImageHelpsError, SourceError, UsageError
from builder.base.events import Message
from builder.base.values import asdict, dataclass, field, replace
from builder.base.words import shell_word
from builder.definitions import cluster, command, configuration, container, mod
from builder.definitions.configuration import FILE, NOTHING_REQUESTED, Node, RequestedOptions
from builder.definitions.container import LABEL, PROGRAM, ContainerOptions, ContainerSettings, Mount
from builder.engine import client, containers, images, installed
from builder.lock import lock_file
from builder.lock.model import ImageName
from builder.numbers import adopted
from builder.plan import rules
from builder.plan.plan_model import WORKSPACE
from builder.serving import compile_caches, model_weights
from builder.serving.running import CANDIDATE, DIGEST, NODES, PROJECT, TRIED, StartOptions
from builder.serving.selection import SelectedImage, UnnumberedImage, select_any, serve_settings, with_number

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.definitions.command import Backend, ServeCommand
    from builder.definitions.mod import Mod
    from builder.definitions.recipe import Recipe
    from builder.engine.client import Endpoint
    from builder.engine.images import ImageDetails
    from builder.numbers.workspace import Workspace
    from builder.serving.selection import ServedImage


_CACHE = f"{container.HOME}/.cache/huggingface"  # in the container


@dataclass(frozen=True)
class ServeRequest:
    """A request to serve ``text``, a recipe or a model. ``overrides`` and ``extra`` change its command. ``nodes`` of
    builder.yaml serve it, and the first one answers; without nodes, this machine's own engine serves it. ``backend``
    replaces the recipe's. ``force`` starts it despite a shortage of memory. ``image`` is a number in place of the
    paired one. ``try_mods`` are applied in the containers before they serve."""

    text: str
    overrides: Mapping[str, str]
    extra: Sequence[str] = ()
    nodes: Sequence[str] = ()
    backend: Backend | None = None
    container: RequestedOptions = NOTHING_REQUESTED
    force: bool = False
    image: ImageName | None = None
    try_mods: Sequence[str] = ()


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a server's containers, the head first, each on its node; ``nodes`` is empty for the user's own
    engine. ``note`` names the unneeded nodes; ``command`` is the head's."""

    nodes: tuple[Node, ...]
    containers: tuple[ContainerSettings, ...]
    note: str
    options: ContainerOptions
    command: ServeCommand


@dataclass(frozen=True)
class PlannedContainer:
    """A container to create, and the engine to create it on; ``image_id`` is that engine's id of the checked image."""

    engine: Endpoint
    settings: ContainerSettings
    image_id: str


@dataclass(frozen=True)
class PreparedServer:
    """The selected image and the planned containers, the head first. ``secrets`` are values that the containers take
    from the environment. ``reserve`` bytes of memory stay free; with ``force`` a shortage is only reported. ``tried``
    are the mods that the containers wait for."""

    selection: ServedImage
    containers: tuple[PlannedContainer, ...]
    reserve: int
    force: bool = False
    note: str = ""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    tried: tuple[Mod, ...] = ()

    @property
    def head(self) -> PlannedContainer:
        return self.containers[0]

    @property
    def port(self) -> str:
        """The port that the server will answer on; empty if its command names no port."""
        return self.head.settings.labels.get(f"{LABEL}.port", "")


def prepare(workspace: Workspace, request: ServeRequest, selection: ServedImage | None = None) -> PreparedServer:
    """Plans the containers, and checks everything that can be wrong in files and images. A ``selection`` replaces the
    request's. Raises ImageStateError if an engine lacks the image, NoImageHelpsError if the model is missing."""
    selection = selection or selected(workspace.project, request)
    planned = settings(workspace.project, selection, request, workspace.environment)
    container.require_values(planned.options, workspace.environment)
    typed = container.kept(request.container, workspace.environment, Path.cwd())
    names = tuple(request.try_mods)
    options = StartOptions(request.overrides, tuple(request.extra), tuple(request.nodes), request.backend, typed, names)
    labels = {PROJECT: str(workspace.project.root), **options.labels}
    engines = tuple(client.of_node(workspace.environment, node.name, node.engine) for node in planned.nodes)
    engines = engines or (workspace.engine,)
    details, fingerprint = _require_image(selection, engines)
    tried = _load_tried(workspace, engines[0], names, selection.name) if names else ()
    entrypoint = tuple(details[0].config.get("Entrypoint", ()))
    keeps = serve_settings(workspace.project, selection, entrypoint).keep_entrypoint
    ready = []
    for engine, alike, image in zip(engines, planned.containers, details, strict=True):
        each = replace(_waiting(alike, tried) if tried else alike, keep_entrypoint=keeps)
        # Everything that determines how the container serves, with the server's name, which has no prefix.
        content = json.dumps([fingerprint, asdict(replace(each, name=each.labels[LABEL], labels={}))], sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()
        each = replace(each, labels={**each.labels, **labels, DIGEST: digest})
        _require_usable(each, engine, planned.options)
        ready.append(PlannedContainer(engine, each, image.id))
    if not planned.nodes and workspace.engine.host.startswith("unix://"):
        require_model(planned.command, ready[0].settings, workspace.environment, selection.recipe.revision)
    reserve = configuration.load_configuration(workspace.project).reserve
    return PreparedServer(selection, tuple(ready), reserve, request.force, planned.note, planned.options.secrets, tried)


def prepare_candidate(workspace: Workspace, request: ServeRequest, image: ImageName | ServedImage) -> PreparedServer:
    """Plans the server of a candidate: ``image`` is a number, or was selected with its recipe. The candidate has its
    own name and port beside the server of ``request``, and the engine never restarts it. Its measurements belong to the
    recipe, so its port is not recorded as a setting of the user."""
    # The model's own server uses the published ports of the machine.
    options = replace(request.container, publish=())
    beside = replace(request, overrides={**request.overrides, "port": str(processes.free_port())}, container=options)
    if isinstance(image, ImageName):
        prepared = prepare(workspace, replace(beside, image=image))
    else:
        prepared = prepare(workspace, beside, image)
    candidates = []
    for planned in prepared.containers:
        labels = planned.settings.labels
        labels = {
            **labels,
            LABEL: f"{labels[LABEL]}-candidate",
            PROJECT: f"{labels[PROJECT]}{CANDIDATE}",
            **replace(StartOptions.of_labels(labels), overrides=request.overrides).labels,
        }
        settings = replace(planned.settings, name=f"{planned.settings.name}-candidate", labels=labels, restart="no")
        candidates.append(replace(planned, settings=settings))
    return replace(prepared, containers=tuple(candidates))


def selected(project: Project, request: ServeRequest) -> ServedImage:
    lock = lock_file.read_project_lock(project)
    selection = select_any(project, lock, request.text)
    return with_number(lock, selection.recipe, request.image) if request.image else selection


def settings(
    project: Project, selection: ServedImage, request: ServeRequest, environ: Mapping[str, str]
) -> ServerSettings:
    """Plans the containers that serve ``selection``, without asking any engine."""
    if selection.recipe.checkpoint:
        weights = model_weights.served_weights(project, environ, lock_file.read_project_lock(project), selection)
        if weights:
            selection = replace(selection, recipe=weights.recipe)
            request = replace(request, extra=(*request.extra, *weights.extra))
    configured = configuration.load_configuration(project)
    nodes = tuple(configured.node(name) for name in dict.fromkeys(request.nodes))
    if selection.recipe.cluster_only and not request.nodes:
        nodes = configured.nodes
    cluster.require_fit(selection.recipe, len(nodes))
    cluster.require_several(request.backend, len(nodes))
    options, recipe = settle_server_options(project, selection.recipe, request.container, environ, len(nodes))
    together = None
    if len(nodes) > 1:
        backend = cluster.backend_of(recipe, request.backend)
        together = cluster.cluster_of(recipe, request.overrides, request.extra, nodes, backend)
        nodes = tuple(member.node for member in together.members)
    rendered = together.command if together else command.render_command(recipe, request.overrides, request.extra)
    # vLLM logs its arguments. If the server does not start, a part of the log is shown and kept.
    for key in (command.option(rendered.words, "--api-key"), rendered.env.get("VLLM_API_KEY")):
        redaction.learn(key or "")
    of_image = serve_settings(project, selection)
    image: str | tuple[str, int] = selection.name
    compiled = None
    # Tried mods must not change the image's own compile caches.
    if isinstance(selection, SelectedImage) and not request.try_mods:
        owner = compile_caches.shared_with(project, environ, selection.image)
        image, compiled = (selection.image.repository, selection.image.number), (owner.repository, owner.number)
    alike = container.settings(recipe, rendered, of_image, image, environ, options, compiled)
    containers = [_with_models(alike, node, environ) for node in nodes] or [alike]
    if together:
        members = list(zip(containers, together.members, strict=True))
        containers = [cluster.member_settings(each, member, together.backend) for each, member in members]
        head = together.members[0].address
        if len(containers) > 1:
            containers = [cluster.guarded(each, rank, head, together.port) for rank, each in enumerate(containers)]
    # Typed variables and earlyoom come after a node's own settings.
    typed = container.typed_variables(request.container)
    nodes_label = {NODES: ",".join(node.name for node in nodes)} if nodes else {}
    containers = [
        replace(
            each,
            argv=container.earlyoom_beside(each.argv) if options.earlyoom else each.argv,
            env=container.with_variables(each.env, typed),
            labels={**each.labels, **nodes_label},
        )
        for each in containers
    ]
    return ServerSettings(nodes, tuple(containers), together.note if together else "", options, rendered)


def settle_server_options(
    project: Project, recipe: Recipe, typed: RequestedOptions, environ: Mapping[str, str], nodes: int = 1
) -> tuple[ContainerOptions, Recipe]:
    """The options of builder.yaml, the recipe and the request together, for a container on each of ``nodes`` nodes, and
    the recipe without the typed variables."""
    configured = configuration.load_configuration(project).container
    if nodes > 1:
        if typed.publish:
            message = "a server on several nodes uses the network of their machines, so it cannot publish ports"
            raise UsageError(message, hint="to make the server listen on another port: `--port N`")
        configured = replace(configured, publish=())
    return container.settle_container_options(configured, recipe, typed, environ, (project.root, Path.cwd()))


def _with_models(alike: ContainerSettings, node: Node, environ: Mapping[str, str]) -> ContainerSettings:
    """Replaces the mount of the models for a node that has them in another folder."""
    models = node_model_folder(environ, node)
    if models is None or any(mount.target == _CACHE and not mount.ours for mount in alike.mounts):
        return alike
    others = tuple(mount for mount in alike.mounts if not (mount.ours and mount.target.startswith(_CACHE)))
    return replace(alike, mounts=(Mount(models, _CACHE), *others))


def node_model_folder(environ: Mapping[str, str], node: Node) -> str | None:
    """The folder in ``models:`` of a node, as an absolute path for its engine. ``~`` is the same on every machine, so a
    node with another user requires the absolute path."""
    import getpass

    written = node.models
    if written is None or written.startswith("/"):
        return written
    user = urlsplit(node.engine).username if node.engine.startswith("ssh://") else None
    is_same_user = not user or user == (environ.get("USER") or getpass.getuser())
    if f"{written}/".startswith("~/") and is_same_user:
        return (environ.get("HOME") or "/root") + written[1:]
    message = f"{FILE}: `models: {written}` of node {node.name} is not an absolute path"
    raise UsageError(message, hint="write a path that begins with /; `~` works only for a node with the same user")


# Mods that are tried without a build. After its start, each container waits until every mod was applied in it by the
# script that bakes the mod, and passed its checks.

_APPLIED = "/run/builder-tried"
# When the mark exists, the server replaces the shell, also after the engine restarts the container.
_WAIT = """\
trap 'exit 143' TERM INT
[ -e "$0" ] || echo "waiting for builder to apply the mods"
until [ -e "$0" ]; do sleep 0.1; done
trap - TERM INT
cd "$1"
shift
exec "$@"
"""


def _load_tried(workspace: Workspace, engine: Endpoint, names: Sequence[str], image_name: str) -> tuple[Mod, ...]:
    """The mods ``names`` in the order in which they are applied to an image of ``engine``. Raises FileProblemsError for
    a mod that does not fit, UsageError for an unknown mod and for a mod that can only act on the machine."""
    project = workspace.project
    mods = mod.load_all(project, names)
    for each in mods:
        if (facts := mod.read_script_facts(each)) and facts.instead:
            raise UsageError(f"mod {each.name} cannot be applied to an image: {facts.instead}")
        if each.run and not each.network:
            workspace.report(Message(f"mod {each.name} can use the network here, but not in a build"))
    software = installed.read_installed(engine, image_name, containers.reading_labels())
    pinned = {**software.packages, "python": software.python}
    pinned |= {name: package.version for name, package in software.sources.items()}
    mods = rules.arrange_steps([rules.ImageMods(image_name, mods, pinned)], mod.mod_names(project))[0]
    mod.require_templates(mods)
    return mods


def _waiting(settings: ContainerSettings, mods: Sequence[Mod]) -> ContainerSettings:
    """The same container, which serves only after the ``mods`` were applied in it."""
    own = {name: value for each in mods for name, value in each.env.items()}
    return replace(
        settings,
        argv=("/bin/sh", "-c", _WAIT, tried_mark(mods), WORKSPACE, *settings.argv),
        env={**own, **settings.env},
        labels={**settings.labels, TRIED: json.dumps([each.name for each in mods])},
    )


def tried_mark(mods: Sequence[Mod]) -> str:
    """The path that a container waits for. It depends on the content of the mods."""
    content = json.dumps([(each.name, each.content_hash) for each in mods])
    return f"{_APPLIED}/{hashlib.sha256(content.encode()).hexdigest()[:12]}"


# The checks of a plan: image, volumes, earlyoom, model.


def _require_image(selection: ServedImage, engines: Sequence[Endpoint]) -> tuple[tuple[ImageDetails, ...], str]:
    """The image as each engine has it, and its fingerprint. Raises ImageStateError if an engine lacks the image or has
    another image of that name."""
    name = selection.name
    is_numbered = isinstance(selection, SelectedImage)
    expected = selection.record.fingerprint if isinstance(selection, SelectedImage) else ""
    details, problems, moved, lacking = [], [], [], []
    for engine in engines:
        image = images.inspect_image(engine, name)
        if image is None:
            problems.append(f"{name} is missing from {f'node {engine.node}' if engine.node else 'this engine'}")
            lacking.append(engine.node)
            continue
        expected = expected or images.fingerprint(image)
        if images.fingerprint(image) == expected:
            details.append(image)
        elif is_numbered:
            where = f"on node {engine.node}" if engine.node else "in this engine"
            problems.append(f"{name} is not the image that images.lock records: its tag was moved {where}")
            moved.append(engine.node)
        else:
            problems.append(f"{name} on node {engine.node} is a different image than on the first node")
            lacking.append(engine.node)
    if problems:
        hint = _way_to(selection, moved, [*moved, *lacking])
        raise ImageStateError("\n".join([f"{problems[0]}: nothing was started", *problems[1:]]), hint=hint)
    return tuple(details), expected


def _way_to(selection: ServedImage, moved: Sequence[str], lacking: Sequence[str]) -> str:
    """The ways to get an image that the nodes ``lacking`` do not have, or this engine if a name is empty. On the nodes
    ``moved``, its name belongs to another image."""
    name, recipe, nodes = selection.name, selection.recipe, " ".join(lacking)
    if isinstance(selection, UnnumberedImage):
        if nodes:
            return f"`builder adopt {name}` gives it a number; then `builder copy IMAGE:N {nodes}` copies it there"
        pull = f"get it from a registry: `docker pull {name}`"
        return f"`builder build {shell_word(recipe.file)}` builds it, or {pull}" if selection.definition else pull
    where = f"on {', '.join(moved)}, " if nodes else ""
    frees = f"{where}`{adopted.frees(name)}` frees the name; then " if moved else ""
    if nodes:
        return f"{frees}`builder copy {name} {nodes}` copies it there"
    back = adopted.way_back(selection.image, selection.record)
    rollback = f"`builder rollback {shell_word(recipe.model or recipe.file)}` goes to the previous image, if any"
    return f"{frees}{back}; {rollback}"


def _require_usable(settings: ContainerSettings, endpoint: Endpoint, options: ContainerOptions) -> None:
    """Raises UsageError for a missing volume of this machine, ImageStateError if the image lacks earlyoom."""
    for mount in settings.mounts:
        if endpoint.host.startswith("unix://") and not mount.ours and not Path(mount.source).exists():
            message = f"the volume {mount} cannot be mounted: {mount.source} does not exist"
            raise UsageError(message, hint=f"to mount an empty folder: `mkdir -p {shell_word(mount.source)}`")
    if not options.earlyoom:
        return
    with containers.running(endpoint, settings.image, labels={"builder.serve.check": "earlyoom"}) as checked:
        result = checked.run(["sh", "-c", f"command -v {PROGRAM}"], timeout=60.0)
    if result.exit_code:
        raise ImageStateError(
            f"{settings.image} has no {PROGRAM}: nothing was started",
            hint=f"to serve without {PROGRAM}: `--no-earlyoom`, or remove `earlyoom` from builder.yaml; to add it to "
            f"the image: install the package {PROGRAM} in Dockerfile.j2, and build again",
        )


# These variables may change where the model comes from.
_CHANGES_HUB = frozenset({"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "VLLM_USE_MODELSCOPE"})
_OFFLINE = frozenset({"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"})


def require_model(
    command: ServeCommand, container: ContainerSettings, environ: Mapping[str, str], revision: str | None
) -> None:
    """Raises NoImageHelpsError if the model of ``command`` is neither on the hub, in the cache, nor in a mounted
    folder. The server decides the cases that cannot be checked here."""
    model = command.model
    if not model or "$" in model:
        return
    if model.startswith("/"):
        holding = [mount for mount in container.mounts if f"{model}/".startswith(f"{mount.target}/")]
        if not holding:
            return  # the image contains the model
        nearest = max(holding, key=lambda mount: len(mount.target))
        folder = Path(nearest.source, model.removeprefix(nearest.target).lstrip("/"))
        if not folder.exists():
            message = f"{folder}, which the server would find as {model}, does not exist"
            hint = "correct `model` in the recipe, or the volume that should contain the folder"
            raise NoImageHelpsError(message, hint=hint)
    elif hub_cache.is_id(model):
        caches = [mount for mount in container.mounts if f"{mount.target}/".startswith(f"{_CACHE}/")]
        if all(mount.ours for mount in caches) and not _CHANGES_HUB & {*container.env}:
            _require_on_hub(container, environ, model, revision or hub_cache.MAIN)


def _require_on_hub(container: ContainerSettings, environ: Mapping[str, str], model: str, revision: str) -> None:
    if hub_cache.revision(environ, model, revision) or hub_cache.find_model(environ, model):
        return
    from builder.sources import hub

    settings = {key: value for key, value in container.env.items() if key.startswith(("HF_", "TRANSFORMERS_"))}
    try:
        hub.find_snapshot({**environ, **settings}, model, revision)
    except ModelUnavailableError as error:
        hint = error.hint
        if _OFFLINE & {*settings} and not _OFFLINE & {*environ}:
            hint = f"download it first with `builder download {model}`: the recipe does not let the server use the hub"
        raise NoImageHelpsError(f"nothing was started: {error.message}", hint=hint) from None
    except SourceError:
        return  # a hub that does not answer now may answer in a minute

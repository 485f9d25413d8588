"""The containers of a server are planned and checked before anything starts.

Checks of the model come first, then the folder of models on a node, the options, and the plan itself.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from builder.base import hub_cache, redaction
from builder.base.errors import ImageStateError, ModelUnavailableError, NoImageHelpsError, SourceError, UsageError
from builder.definitions import cluster, command, configuration, container
from builder.definitions.command import option
from builder.definitions.configuration import FILE, NOTHING_REQUESTED, RequestedOptions
from builder.definitions.container import (
    LABEL,
    PROGRAM,
    Mount,
    earlyoom_beside,
    settle_container_options,
    typed_variables,
    with_variables,
)
from builder.engine import containers, images
from builder.lock import lock_file
from builder.numbers import adopted
from builder.serving import checkpoint_weights, running
from builder.serving.memory import MemoryRule
from builder.serving.running import DIGEST, NODES, PROJECT, REQUEST, ServingEngine
from builder.serving.selection import SelectedImage, UnnumberedImage, select_any, serve_settings, with_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.base.project import Project
    from builder.definitions.cluster import Cluster
    from builder.definitions.command import Backend, ServeCommand
    from builder.definitions.configuration import Node
    from builder.definitions.container import ContainerOptions, ContainerSettings
    from builder.definitions.recipe import Recipe
    from builder.engine.client import Endpoint
    from builder.engine.images import ImageDetails
    from builder.lock.model import ImageName
    from builder.numbers.workspace import Workspace
    from builder.serving.selection import ServedImage


# Refusals that need no start: a model that is nowhere to be had, and a context that is longer than the model's own.

# Keys of config.json that vLLM takes the longest context from (vllm/config/model.py, _get_and_verify_max_len, 0.32).
_LENGTHS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"),
    *("max_target_positions", "max_sequence_length", "max_seq_length", "seq_len"),
)
# What is set here may change the model's configuration, or where it comes from.
_CHANGES_CONFIG = frozenset(
    {
        *("--hf-overrides", "--hf-config-path", "--rope-scaling", "--rope-theta", "--rope-parameters"),
        *("--config-format", "--config", "--download-dir", "--load-format"),
    }
)
_CHANGES_HUB = frozenset({"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "VLLM_USE_MODELSCOPE"})
_OFFLINE = frozenset({"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"})
_INSIDE = "/root/.cache/huggingface"
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG])?")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def require_model(
    command: ServeCommand, container: ContainerSettings, environ: Mapping[str, str], revision: str | None
) -> None:
    """Raises NoImageHelpsError where the ``command`` cannot serve its model on this machine: the hub or, offline, the
    cache has none of that name, a mounted folder does not hold it, or it takes no context of that length. What cannot
    be told is left to the server."""
    model = command.model
    if not model or "$" in model:
        return
    if model.startswith("/"):
        folder = _on_this_machine(container, model)
        if folder is not None and not folder.exists():
            raise NoImageHelpsError(
                f"there is no {folder}, which the server would find as {model}",
                hint="the recipe's `model` or its `volumes:` names another folder than the one that holds the model",
            )
    elif hub_cache.is_id(model) and _is_our_cache(container):
        folder = _of_hub(container, environ, model, revision or hub_cache.MAIN)
    else:
        return
    if folder is not None:
        _require_length(command, container, folder, model)


def longest_context(config: Mapping[str, Any]) -> int | None:
    """The longest context that a model of this config.json can take; None where that cannot be told for certain."""
    texts = [config, *(config[key] for key in ("text_config", "llm_config") if isinstance(config.get(key), dict))]
    thinker = config.get("thinker_config")
    if isinstance(thinker, dict):
        texts += [thinker, *(each for each in [thinker.get("text_config")] if isinstance(each, dict))]
    lengths: list[int] = [text[key] for text in texts for key in _LENGTHS if isinstance(text.get(key), int)]
    scaled = [text.get(key) for text in texts for key in ("rope_scaling", "rope_parameters")]
    if not lengths or any(_stretches(rope) for rope in scaled):
        return None
    return max(lengths)


def _stretches(rope: object) -> bool:
    """True for positions that are scaled: the length is then another than the one that is written."""
    if not isinstance(rope, dict):
        return False
    kind = rope.get("rope_type", rope.get("type", "default"))
    return "factor" in rope or kind not in ("default", "mrope") or any(isinstance(each, dict) for each in rope.values())


def _require_length(command: ServeCommand, container: ContainerSettings, folder: Path, model: str) -> None:
    words = {word.partition("=")[0].replace("_", "-") for word in command.words}
    wanted = _tokens(option(command.words, "--max-model-len", "--max_model_len") or "")
    overridden = {**command.env, **container.env}.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") not in (None, "", "0")
    if (
        wanted is None
        or overridden
        or words & _CHANGES_CONFIG
        or any(word.startswith("--hf-overrides") for word in words)
    ):
        return
    config: object = None
    with suppress(OSError, ValueError):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    longest = longest_context(config) if isinstance(config, dict) else None
    if longest is not None and wanted > longest:
        raise NoImageHelpsError(
            f"{model} takes a context of at most {longest} tokens, and --max-model-len asks for {wanted}",
            hint=f"`--max-model-len {longest}` or less, in the recipe or as an option of `builder run`",
        )


def _tokens(text: str) -> int | None:
    """The number that vLLM reads in ``32768``, ``32k`` (a thousand each) or ``32K`` (1024 each); None for any other."""
    match = _HUMAN.fullmatch(text)
    return int(float(match[1]) * _UNITS[match[2] or ""]) if match else None


def _on_this_machine(container: ContainerSettings, path: str) -> Path | None:
    """The folder that is mounted at ``path``; None where it is the image's own."""
    holding = [mount for mount in container.mounts if f"{path}/".startswith(f"{mount.target}/")]
    if not holding:
        return None
    nearest = max(holding, key=lambda mount: len(mount.target))
    return Path(nearest.source, path.removeprefix(nearest.target).lstrip("/"))


def _is_our_cache(container: ContainerSettings) -> bool:
    """True if the server looks for models of the hub where this program keeps them."""
    at = [mount for mount in container.mounts if mount.target == _INSIDE or mount.target.startswith(f"{_INSIDE}/")]
    return all(mount.ours for mount in at) and not _CHANGES_HUB & {*container.env}


def _of_hub(container: ContainerSettings, environ: Mapping[str, str], model: str, revision: str) -> Path | None:
    """The folder of a cached model, None where it is yet to be downloaded. Raises NoImageHelpsError where it cannot."""
    if commit := hub_cache.revision(environ, model, revision):
        return hub_cache.folder(environ, model) / "snapshots" / commit
    if hub_cache.find_model(environ, model):
        return None
    from builder.sources import hub

    settings = {key: value for key, value in container.env.items() if key.startswith(("HF_", "TRANSFORMERS_"))}
    try:
        hub.find_snapshot({**environ, **settings}, model, revision)
    except ModelUnavailableError as error:
        # A recipe that keeps its server from the hub keeps nobody from downloading.
        is_own = not _OFFLINE & {*environ} and bool(_OFFLINE & {*settings})
        hint = (
            f"`builder download {model}` brings it; the recipe keeps the server from the hub" if is_own else error.hint
        )
        raise NoImageHelpsError(f"nothing was started: {error.message}", hint=hint) from None
    except SourceError:
        return None  # a hub that does not answer may do so in a minute
    return None


# The folder of models on a node, as an engine mounts it: with its whole path.


def node_model_folder(environ: Mapping[str, str], node: Node) -> str | None:
    """The folder that ``models:`` of a node names; None where it names none. ``~`` is the user's home folder, which
    is taken to be the same on every machine.

    Raises UsageError for ``~`` of a node that is reached as another user, and for a path that is relative.
    """
    written = node.models
    if written is None or written.startswith("/"):
        return written
    if written != "~" and not written.startswith("~/"):
        _refuse(node, "is no whole path", "it begins with / or ~/")
    user = urlsplit(node.engine).username or "" if node.engine.startswith("ssh://") else ""
    home = environ.get("HOME") or "/root"
    if user and user != _user(environ):
        _refuse(node, f"is in the home folder of {user}, whose path there is not known here", "write the whole path")
    return home + written[1:]


def _refuse(node: Node, why: str, hint: str) -> None:
    raise UsageError(f"{FILE}: `models: {node.models}` of node {node.name} {why}", hint=hint)


def _user(environ: Mapping[str, str]) -> str:
    import getpass

    return environ.get("USER") or getpass.getuser()


# The options of a server's container in a project: those of builder.yaml, its recipe and the request together.

_CHECK = "builder.serve.check"
_CHECK_SECONDS = 60.0


def settle_server_options(
    project: Project, recipe: Recipe, typed: RequestedOptions, environ: Mapping[str, str], nodes: int = 1
) -> tuple[ContainerOptions, Recipe]:
    """The options for a container of ``recipe`` on each of so many ``nodes``, and the recipe without the variables that
    are typed in place of its own.

    Raises UsageError for an option that is wrong, or cannot be used with several nodes, FileProblemsError for a volume
    of the recipe that is wrong.
    """
    configured = configuration.load_configuration(project).container
    if nodes > 1:
        if typed.publish:
            raise UsageError(
                "ports can be published on one machine only: several nodes use the network of their machines",
                hint="`--port N` has the server listen on another port",
            )
        configured = replace(configured, publish=())
    return settle_container_options(configured, recipe, typed, environ, (project.root, Path.cwd()))


def completed(settings: ContainerSettings, options: ContainerOptions, typed: RequestedOptions) -> ContainerSettings:
    """``settings`` of a node's container with what counts after the node's own: the variables that are ``typed``, and
    earlyoom beside whatever runs there."""
    variables = typed_variables(typed)
    argv = earlyoom_beside(settings.argv) if options.earlyoom else settings.argv
    return replace(settings, argv=argv, env=with_variables(settings.env, variables))


def require_usable(containers: Sequence[tuple[ContainerSettings, Endpoint]], options: ContainerOptions) -> None:
    """Raises UsageError where a volume of a container is missing on this machine, ImageStateError where its image lacks
    earlyoom and is to run it."""
    for settings, endpoint in containers:
        require_volumes(settings, endpoint)
        if options.earlyoom:
            require_earlyoom(settings, endpoint)


def require_volumes(settings: ContainerSettings, endpoint: Endpoint) -> None:
    """Raises UsageError where a volume is missing on this machine; on another one the engine says so."""
    if not endpoint.host.startswith("unix://"):
        return
    for mount in settings.mounts:
        if not mount.ours and not Path(mount.source).exists():
            raise UsageError(
                f"the volume {mount} cannot be mounted: {mount.source} does not exist",
                hint=f"`mkdir -p {mount.source}` if an empty folder is wanted",
            )


def require_earlyoom(settings: ContainerSettings, endpoint: Endpoint) -> None:
    """Raises ImageStateError where the image of a container with earlyoom does not have it."""
    with containers.running(endpoint, settings.image, labels={_CHECK: "earlyoom"}) as container:
        result = container.run(["sh", "-c", f"command -v {PROGRAM}"], timeout=_CHECK_SECONDS)
    if result.exit_code:
        raise ImageStateError(
            f"{settings.image} has no {PROGRAM}: nothing was started",
            hint=f"install the package {PROGRAM} in its Dockerfile.j2 and build again, or run without it: "
            "`--no-earlyoom`, or no `earlyoom` in builder.yaml",
        )


# Preparation of a server: the containers that `run` will start, planned and checked before anything is started.


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
    container.require_values(planned.options, workspace.environment)
    options = {
        "overrides": dict(request.overrides),
        "extra": list(request.extra),
        "nodes": list(request.nodes),
        "backend": request.backend,
        "container": container.kept(request.container, workspace.environment, Path.cwd()),
    }
    labels = {PROJECT: str(workspace.project.root), REQUEST: json.dumps(options)}
    engines = tuple(running.engine_of_node(workspace.environment, node) for node in planned.nodes)
    engines = engines or (ServingEngine(workspace.engine),)
    details, fingerprint = _require_image(selection, engines)
    entrypoint = tuple(details[0].config.get("Entrypoint", ()))
    keeps = serve_settings(workspace.project, selection, entrypoint).keep_entrypoint
    all_settings = [
        _with_digest(replace(each, labels={**each.labels, **labels}, keep_entrypoint=keeps), fingerprint)
        for each in planned.containers
    ]
    containers = tuple(map(PlannedContainer, engines, all_settings, [image.id for image in details]))
    endpoints = (engine.endpoint for engine in engines)
    require_usable(tuple(zip(all_settings, endpoints, strict=True)), planned.options)
    if not planned.nodes and workspace.engine.host.startswith("unix://"):
        require_model(planned.command, all_settings[0], workspace.environment, selection.recipe.revision)
    rule = MemoryRule(configuration.load_configuration(workspace.project).reserve, request.force)
    return PreparedServer(selection, containers, rule, planned.note, planned.options.secrets)


def selected(project: Project, request: ServeRequest) -> ServedImage:
    lock = lock_file.read_project_lock(project)
    selection = select_any(project, lock, request.text)
    return with_number(lock, selection.recipe, request.image) if request.image else selection


def settings(
    project: Project, selection: ServedImage, request: ServeRequest, environ: Mapping[str, str]
) -> ServerSettings:
    """Plans the containers that serve ``selection``, without asking any engine. Raises UsageError and
    FileProblemsError for a command that cannot be rendered, and for nodes that do not fit it."""
    if selection.recipe.checkpoint:
        weights = checkpoint_weights.served_weights(project, environ, lock_file.read_project_lock(project), selection)
        if weights:
            selection = replace(selection, recipe=weights.recipe)
            request = replace(request, extra=(*request.extra, *weights.extra))
    nodes = _nodes(project, selection, request.nodes)
    cluster.require_several(request.backend, len(nodes))
    options, recipe = settle_server_options(project, selection.recipe, request.container, environ, len(nodes))
    together = _cluster(recipe, nodes, request) if len(nodes) > 1 else None
    if together:
        nodes = tuple(member.node for member in together.members)
    rendered = together.command if together else command.render_command(recipe, request.overrides, request.extra)
    # vLLM writes its arguments into its log, of which a part is shown and kept where it does not start.
    for key in (command.option(rendered.words, "--api-key"), rendered.env.get("VLLM_API_KEY")):
        redaction.learn(key or "")
    of_image = serve_settings(project, selection)
    alike = container.settings(recipe, rendered, of_image, selection.run_from, environ, options)
    containers = [_with_models(alike, node, environ) for node in nodes] or [alike]
    if together:
        members = list(zip(containers, together.members, strict=True))
        containers = [cluster.member_settings(each, member, together.backend) for each, member in members]
        head = together.members[0].address
        if len(containers) > 1:
            containers = [cluster.guarded(each, rank, head, together.port) for rank, each in enumerate(containers)]
    containers = [completed(each, options, request.container) for each in containers]
    names = ",".join(node.name for node in nodes)
    if names:
        containers = [replace(each, labels={**each.labels, NODES: names}) for each in containers]
    return ServerSettings(nodes, tuple(containers), together.note if together else "", options, rendered)


def _nodes(project: Project, selection: ServedImage, requested: Sequence[str]) -> tuple[Node, ...]:
    configured = configuration.load_configuration(project)
    nodes = tuple(configured.node(name) for name in dict.fromkeys(requested))
    if selection.recipe.cluster_only and not requested:
        nodes = configured.nodes
    cluster.require_fit(selection.recipe, len(nodes))
    return nodes


def _cluster(recipe: Recipe, nodes: Sequence[Node], request: ServeRequest) -> Cluster:
    backend = cluster.backend_of(recipe, request.backend)
    return cluster.cluster_of(recipe, request.overrides, request.extra, nodes, backend)


def _with_models(alike: ContainerSettings, node: Node, environ: Mapping[str, str]) -> ContainerSettings:
    """Replaces the mount of the models for a node that keeps them elsewhere; its folder holds the hub's folder, too."""
    inside = f"{container.HOME}/.cache/huggingface"
    models = node_model_folder(environ, node)
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
        image = images.inspect_image(engine.endpoint, name)
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

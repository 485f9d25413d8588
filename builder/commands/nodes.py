"""The nodes commands show, check and discover the nodes of a project."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.base import hub_cache
from builder.base.errors import BuilderError, EngineError, UsageError
from builder.base.events import Diagnosis, Report, Verdict
from builder.base.values import dataclass
from builder.definitions import command, configuration
from builder.definitions.container import LABEL
from builder.engine import client as endpoints
from builder.engine import containers, images, machine
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock
from builder.moving import machines
from builder.moving.machines import LinkChoice, MachineFacts
from builder.numbers import adopted
from builder.serving import advice
from builder.serving.selection import SelectedImage, ServedImage, select_any, select_image

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.definitions.configuration import Configuration, Node
    from builder.engine.client import Endpoint
    from builder.numbers.status import ImageState


# The nodes command: the numbered images on each machine, its servers, and which of both are stale.


@dataclass(frozen=True)
class NodeImage:
    """A number on a node. ``latest`` is true if the node's ``latest`` tag points to the number, ``current`` if
    images.lock says that the number is current. It is ``stale`` if only ``latest`` is true."""

    image: ImageName
    state: ImageState
    latest: bool
    current: bool

    @property
    def stale(self) -> bool:
        return self.latest and not self.current


@dataclass(frozen=True)
class NodeServer:
    """A container that `run` started. ``stale`` is true if its model is now paired with another image."""

    name: str
    image: str
    model: str
    state: str
    stale: bool


@dataclass(frozen=True)
class NodeState:
    """The images of a node, the newest numbers first, and its servers. ``error`` explains why they are unknown."""

    node: str
    host: str
    images: tuple[NodeImage, ...]
    serving: tuple[NodeServer, ...]
    error: str = ""


def nodes_state(
    project: Project, environ: Mapping[str, str], timeout: float | None, report: Report
) -> tuple[NodeState, ...]:
    """Reads the state of all nodes of builder.yaml in parallel. A node that does not answer within ``timeout`` seconds
    (default: the value in builder.yaml) gets an ``error``."""
    lock = lock_file.read_project_lock(project)
    config = configuration.load_configuration(project)
    engines = machines.engines(project, environ, ())

    def state(node: str, engine: Endpoint) -> NodeState:
        node_images = _images(lock, engine, project.state / f"node-{node}.json")
        return NodeState(node, engine.host, node_images, _servers(lock, engine))

    answers = machines.ask_machines(engines, state, timeout or config.node_timeout, report, machines.WAIT_LONGER)
    return tuple(
        NodeState(node, _host(config, node, engines[node]), (), (), answer.message)
        if isinstance(answer, BuilderError)
        else answer
        for node, answer in answers.items()
    )


def _host(config: Configuration, node: str, engine: Endpoint | EngineError) -> str:
    """The address of a node's engine, or the name of the docker context that does not exist."""
    return config.node(node).engine if isinstance(engine, EngineError) else engine.host


def _images(lock: Lock, engine: Endpoint, cache: Path) -> tuple[NodeImage, ...]:
    tags = images.image_tags(engine, lock.images) if lock.images else {}
    fingerprints = images.fingerprints(engine, tags.values(), cache)
    node_images = []
    for name, image in lock.numbered():
        if (engine_id := tags.get(str(name))) is not None:
            state: ImageState = "present" if fingerprints.get(engine_id) == image.fingerprint else "moved"
            is_latest = engine_id == tags.get(f"{name.repository}:latest")
            node_images.append(NodeImage(name, state, is_latest, lock.images[name.repository].current == name.number))
    return tuple(node_images)


def _servers(lock: Lock, engine: Endpoint) -> tuple[NodeServer, ...]:
    servers = []
    for container in containers.container_listing(engine, LABEL):
        labels = container["Labels"]
        image, model = labels.get(f"{LABEL}.image", ""), labels.get(f"{LABEL}.model", "")
        record = lock.models.get(model)
        stale = record is not None and str(record.pairing.image) != image
        servers.append(NodeServer(labels[LABEL], image, model, container.get("State", ""), stale))
    return tuple(sorted(servers, key=lambda server: server.name))


# The ``nodes check`` command: tries everything that nodes need to serve one model together.

# A difference of minutes breaks certificates and tokens. A difference of seconds mixes up the logs of the nodes.
_CLOCK_WARNING, _CLOCK_ERROR = 1.0, 60.0


@dataclass(frozen=True)
class _Wanted:
    """The required images by name, each with its fingerprint in images.lock (None without a number). The required
    models by name, each with the revision of its pairing. ``verdict`` applies if one is missing: an error if a recipe
    was named. ``served`` are the images with the recipes that they serve."""

    images: Mapping[str, str | None]
    models: Mapping[str, str | None]
    verdict: Verdict
    served: tuple[ServedImage, ...]


@dataclass(frozen=True)
class _Looked:
    """The state of a node: its facts, the version of its engine, and the fingerprints of the required images that it
    has. An error replaces facts or version."""

    facts: MachineFacts | BuilderError
    engine: str | BuilderError
    fingerprints: Mapping[str, str]


def check_nodes(
    project: Project,
    environ: Mapping[str, str],
    text: str | None,
    names: Sequence[str],
    timeout: float | None,
    report: Report,
) -> dict[str, tuple[Diagnosis, ...]]:
    """Checks the nodes ``names``, or all nodes; returns the findings by node. If ``text`` names a recipe or a model,
    each node must have its image and its model. Otherwise each node must have the current images and paired models that
    another node has. Raises UsageError if there are no nodes, or if ``text`` names nothing that can be served."""
    config = configuration.load_configuration(project)
    engines = _engines(project, environ, names)
    nodes = [config.node(name) for name in engines]
    wanted = _wanted(project, lock_file.read_project_lock(project), text)

    def look(name: str, engine: Endpoint) -> _Looked:
        return _look(environ, config.node(name), engine, wanted)

    answers = machines.ask_machines(engines, look, timeout or config.node_timeout, report, machines.WAIT_LONGER)
    looked = {
        name: _Looked(answer, answer, {}) if isinstance(answer, BuilderError) else answer
        for name, answer in answers.items()
    }
    return {
        node.name: (*_findings(node, nodes, looked, wanted), *_advice(project, nodes, node, looked[node.name], wanted))
        for node in nodes
    }


def _engines(project: Project, environ: Mapping[str, str], names: Sequence[str]) -> dict[str, Endpoint | EngineError]:
    engines = machines.engines(project, environ, names)
    if not engines:
        here = endpoints.find_endpoint(environ).host
        hint = f"name them there: `nodes: {{spark1: {here}, spark2: ssh://USER@HOST}}`"
        raise UsageError(f"{configuration.FILE} names no nodes", hint=hint)
    return engines


def _wanted(project: Project, lock: Lock, text: str | None) -> _Wanted:
    if text is None:
        current = {
            ImageName(repository, record.current): record.numbers[record.current]
            for repository, record in lock.images.items()
            if record.current in record.numbers
        }
        fingerprints = {str(name): image.fingerprint for name, image in current.items()}
        revisions = {name: model.pairing.revision for name, model in lock.models.items()}
        paired: list[ServedImage] = []
        for model in lock.models:
            with suppress(BuilderError):  # skips a recipe that cannot be read
                paired.append(select_image(project, lock, model))
        return _Wanted(fingerprints, revisions, "warning", tuple(paired))
    selection = select_any(project, lock, text)
    model = selection.recipe.model or command.render_command(selection.recipe, {}, ()).model or ""
    recorded = lock.models[model].pairing.revision if model in lock.models else None
    models = {model: selection.recipe.revision or recorded} if hub_cache.is_id(model) else {}
    fingerprint = selection.record.fingerprint if isinstance(selection, SelectedImage) else None
    return _Wanted({selection.name: fingerprint}, models, "error", (selection,))


def _advice(project: Project, nodes: Sequence[Node], node: Node, seen: _Looked, wanted: _Wanted) -> Iterator[Diagnosis]:
    facts = seen.facts
    if isinstance(facts, BuilderError):
        return
    machine = advice.machine_facts(facts.machine)
    own_first = [node, *(each for each in nodes if each.name != node.name)]
    advised = dict.fromkeys(advice.of_any_server(project, own_first, machine))
    for selection in wanted.served:
        if selection.name in seen.fingerprints:
            advised |= dict.fromkeys(advice.of_selection(project, selection, own_first, machine))
    yield from advised


def _look(environ: Mapping[str, str], node: Node, engine: Endpoint, wanted: _Wanted) -> _Looked:
    facts: MachineFacts | BuilderError
    version: str | BuilderError
    fingerprints = {}
    hub = f"{node.models.rstrip('/')}/hub" if node.models else str(hub_cache.hub(environ))
    try:
        facts = machines.gather_facts(environ, engine.host, hub)
    except BuilderError as error:
        facts = error
    try:
        version = machine.require_engine(engine)
        for name in wanted.images:
            if image := images.inspect_image(engine, name):
                fingerprints[name] = images.fingerprint(image)
    except BuilderError as error:
        version = error
    return _Looked(facts, version, fingerprints)


def _findings(node: Node, nodes: Sequence[Node], looked: Mapping[str, _Looked], wanted: _Wanted) -> Iterator[Diagnosis]:
    seen = looked[node.name]
    here = machine.is_here(node.engine) or "://" not in node.engine
    if isinstance(seen.facts, BuilderError):
        yield Diagnosis("ssh", "error", seen.facts.message, seen.facts.hint)
    else:
        yield Diagnosis("ssh", "ok", f"{seen.facts.name}{', this machine' if here else ''}")
    if isinstance(seen.engine, BuilderError):
        yield Diagnosis("engine", "error", seen.engine.message, seen.engine.hint)
    else:
        yield Diagnosis("engine", "ok", seen.engine)
        yield from _image_findings(node, looked, wanted)
    if not isinstance(seen.facts, BuilderError):
        yield from machines.check_links(node, nodes, seen.facts)
        if machines.has_gb10(seen.facts.machine):
            yield machines.check_driver(seen.facts.machine.driver)
        yield Diagnosis("kernel", "ok", seen.facts.machine.kernel or "unknown")
        yield from _models(node, looked, wanted)
        yield _clock(seen.facts)


def _image_findings(node: Node, looked: Mapping[str, _Looked], wanted: _Wanted) -> Iterator[Diagnosis]:
    for name, fingerprint in wanted.images.items():
        there = {other: seen.fingerprints[name] for other, seen in looked.items() if name in seen.fingerprints}
        first = next(iter(there), "")
        like = "in images.lock" if fingerprint else f"on {first}"
        present, expected = there.get(node.name), fingerprint or there.get(first)
        remedy = f"`builder copy {name} {node.name}` copies it there"
        if fingerprint is None:
            remedy = (
                f"`builder adopt {name}` gives it a number; then `builder copy IMAGE:N {node.name}` copies it there"
            )
        if present is not None and present == expected:
            yield Diagnosis("image", "ok", f"{name}, same as {like}")
        elif present is not None:
            other = f"on {node.name}, `{adopted.frees(name)}` frees the name; then {remedy}"
            yield Diagnosis("image", "error", f"{name} differs from the image {like}", other if fingerprint else remedy)
        elif wanted.verdict == "error" or there:
            yield Diagnosis("image", wanted.verdict, f"{name} is missing", remedy)


def _models(node: Node, looked: Mapping[str, _Looked], wanted: _Wanted) -> Iterator[Diagnosis]:
    facts = {name: seen.facts for name, seen in looked.items() if not isinstance(seen.facts, BuilderError)}
    for model, revision in wanted.models.items():
        commits = facts[node.name].commits(model)
        remedy = f"`builder download {model} --to {node.name}` copies it there"
        if commits and (revision is None or not hub_cache.is_commit(revision) or revision in commits):
            yield Diagnosis("model", "ok", model)
        elif commits:
            present = ", ".join(sorted(commit[:7] for commit in commits))
            message = f"{model} is present at revision {present}, not {(revision or '')[:7]}"
            yield Diagnosis("model", wanted.verdict, message, remedy)
        elif wanted.verdict == "error" or any(other.commits(model) for other in facts.values()):
            yield Diagnosis("model", wanted.verdict, f"{model} is missing", remedy)


def _clock(facts: MachineFacts) -> Diagnosis:
    offset = facts.clock_offset
    apart = max(abs(offset) - facts.clock_error, 0.0)
    if apart <= _CLOCK_WARNING:
        return Diagnosis("clock", "ok", "same as here")
    message = f"{abs(offset):.0f} s {'ahead' if offset > 0 else 'behind'}"
    verdict: Verdict = "error" if apart > _CLOCK_ERROR else "warning"
    return Diagnosis("clock", verdict, message, "run `timedatectl set-ntp true` on the node")


# The ``nodes discover`` command: reads address, interface and RoCE devices from each node's machine.


@dataclass(frozen=True)
class Discovery(configuration.ConfigurationChange):
    """The text of builder.yaml before and after the change. For each node, its engine's address, and the choice or
    error."""

    nodes: dict[str, tuple[str, LinkChoice | BuilderError]]


def discover_nodes(
    project: Project, environ: Mapping[str, str], names: Sequence[str], report: Report, timeout: float | None = None
) -> Discovery:
    """Reads the machines of the nodes ``names``, or of all nodes. Each machine must answer within ``timeout`` seconds
    (default: the value in builder.yaml). Writes nothing. Raises UsageError if there are no nodes."""
    config = configuration.load_configuration(project)
    before = configuration.present_text(project)
    engines = _engines(project, environ, names)

    def ask(_: str, engine: Endpoint) -> LinkChoice:
        return machines.choose_link(machines.gather_facts(environ, engine.host))

    answers = machines.ask_machines(engines, ask, timeout or config.node_timeout, report, machines.WAIT_LONGER)
    chosen = {node: _settings(config, node, each) for node, each in answers.items() if isinstance(each, LinkChoice)}
    settings = {node: values for node, values in chosen.items() if values}
    after = configuration.with_node_settings(before, settings) if settings else before
    configuration.document(after)
    return Discovery(
        before, after, {node: (_host(config, node, engines[node]), answer) for node, answer in answers.items()}
    )


def write_nodes(project: Project, discovery: Discovery) -> None:
    """Writes builder.yaml as shown. Raises UsageError if the file has changed since, or cannot be written."""
    configuration.write_change(project, discovery)


def _settings(config: Configuration, name: str, choice: LinkChoice) -> dict[str, Any]:
    """The settings of builder.yaml for a node. Values that the user wrote into ``env`` stay."""
    values: dict[str, Any] = {}
    if choice.interface:
        values |= {"address": choice.address, "interface": choice.interface}
    if choice.rdma:
        values["rdma"] = list(choice.rdma)
    written = next((node.env for node in config.nodes if node.name == name), {})
    if missing := {key: value for key, value in choice.env.items() if key not in written}:
        values["env"] = {**written, **missing}
    return values

"""The ``nodes check`` command: tries everything that several nodes need before they serve one model together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from builder.definitions import configuration
from builder.definitions.recipes import command
from builder.distribution import machines
from builder.engine import images
from builder.engine.client import versions
from builder.errors import BuilderError, UsageError
from builder.lock import reading
from builder.lock.model import ImageName
from builder.nodes import link_checks, machine_facts, machine_shell, spark_checks
from builder.serving import chip_faults, image_selection
from builder.serving.image_selection import SelectedImage
from builder.storage import huggingface_cache

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.definitions.configuration import Node
    from builder.diagnosis import Diagnosis
    from builder.engine.client.endpoint import Endpoint
    from builder.events import Report
    from builder.lock.model import Lock
    from builder.nodes.machine_facts import MachineFacts
    from builder.project import Project

Verdict = Literal["ok", "warning", "error"]
# Certificates and tokens fail by minutes, logs of several nodes read wrongly by seconds.
_CLOCK_WARNING, _CLOCK_ERROR = 1.0, 60.0


@dataclass(frozen=True)
class NodeFinding:
    """The result of one check of a node. ``remedy`` is what to do, empty where all is well."""

    node: str
    subject: str
    verdict: Verdict
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class _Wanted:
    """The images by name, with the fingerprint that images.lock records (None for one without a number), and the models
    by name, with the revision of their pairing; ``is_required`` if a recipe was named, which cannot do without them.
    ``faults`` are those known of an image, by its name."""

    images: Mapping[str, str | None]
    models: Mapping[str, str | None]
    is_required: bool
    faults: Mapping[str, tuple[Diagnosis, ...]]


def run(
    project: Project,
    environ: Mapping[str, str],
    text: str | None,
    names: Sequence[str],
    timeout: float | None,
    report: Report,
) -> tuple[NodeFinding, ...]:
    """Checks the nodes with these names, or all. With ``text``, a recipe or a model, its image and its model have to be
    on each; otherwise those current and paired in images.lock that any node has are expected on the others. A node has
    ``timeout`` seconds to answer, those of builder.yaml where none are given.

    Raises UsageError where there is no node, or ``text`` names nothing that is served.
    """
    config = configuration.load(project)
    engines = machines.engines(project, environ, names)
    if not engines:
        raise UsageError(
            f"{configuration.FILE} names no nodes", hint="name them there: `nodes: {spark2: ssh://USER@HOST}`"
        )
    nodes = [config.node(name) for name in engines]
    wanted = _wanted(project, reading.of(project), text, len(nodes))

    def look(name: str, engine: Endpoint) -> _Looked:
        return _look(environ, config.node(name), engine, wanted)

    answers = machines.ask(engines, look, timeout or config.node_timeout, report)
    looked = {
        name: _Looked(answer, answer, {}) if isinstance(answer, BuilderError) else answer
        for name, answer in answers.items()
    }
    return tuple(finding for node in nodes for finding in _findings(node, nodes, looked, wanted))


@dataclass(frozen=True)
class _Looked:
    """The state of a node: its facts or why there are none, the engine's version or why there is none, and the
    fingerprints of the wanted images that it has."""

    facts: MachineFacts | BuilderError
    engine: str | BuilderError
    fingerprints: Mapping[str, str]


def _wanted(project: Project, lock: Lock, text: str | None, nodes: int) -> _Wanted:
    if text is None:
        current = {
            ImageName(repository, record.current): record.numbers[record.current]
            for repository, record in lock.images.items()
            if record.current in record.numbers
        }
        faults = {
            str(name): tuple(
                chip_faults.of_software(str(name), chip_faults.packages_of(project, name, image), (), nodes)
            )
            for name, image in current.items()
        }
        fingerprints = {str(name): image.fingerprint for name, image in current.items()}
        revisions = {name: model.pairing.revision for name, model in lock.models.items()}
        return _Wanted(fingerprints, revisions, is_required=False, faults=faults)
    selection = image_selection.select_any(project, lock, text)
    model = selection.recipe.model or command.render(selection.recipe, {}, ()).model
    paired = lock.models.get(model or "")
    revision = selection.recipe.revision or (paired.pairing.revision if paired else None)
    models = {model: revision} if model and huggingface_cache.is_id(model) else {}
    if not isinstance(selection, SelectedImage):
        return _Wanted({selection.name: None}, models, is_required=True, faults={})
    own_faults = {selection.name: chip_faults.of_selection(project, selection, nodes)}
    return _Wanted({selection.name: selection.record.fingerprint}, models, is_required=True, faults=own_faults)


def _look(environ: Mapping[str, str], node: Node, engine: Endpoint, wanted: _Wanted) -> _Looked:
    facts: MachineFacts | BuilderError
    version: str | BuilderError
    fingerprints = {}
    hub = f"{node.models.rstrip('/')}/hub" if node.models else str(huggingface_cache.hub(environ))
    try:
        facts = machine_facts.gather(environ, engine.host, hub)
    except BuilderError as error:
        facts = error
    try:
        version = versions.require_engine(engine)
        for name in wanted.images:
            if image := images.inspect(engine, name):
                fingerprints[name] = images.fingerprint(image)
    except BuilderError as error:
        version = error
    return _Looked(facts, version, fingerprints)


def _findings(
    node: Node, nodes: Sequence[Node], looked: Mapping[str, _Looked], wanted: _Wanted
) -> Iterator[NodeFinding]:
    seen = looked[node.name]
    here = machine_shell.is_here(node.engine) or "://" not in node.engine
    if isinstance(seen.facts, BuilderError):
        yield NodeFinding(node.name, "ssh", "error", seen.facts.message, seen.facts.hint)
    else:
        yield NodeFinding(node.name, "ssh", "ok", f"{seen.facts.name}{', this machine' if here else ''}")
    if isinstance(seen.engine, BuilderError):
        yield NodeFinding(node.name, "engine", "error", seen.engine.message, seen.engine.hint)
    else:
        yield NodeFinding(node.name, "engine", "ok", seen.engine)
        yield from _images(node, looked, wanted)
        for name in seen.fingerprints:
            yield from (_finding(node, fault) for fault in wanted.faults.get(name, ()))
    if not isinstance(seen.facts, BuilderError):
        yield from (_finding(node, check) for check in link_checks.run(node, nodes, seen.facts))
        if seen.facts.driver is not None:
            yield _finding(node, spark_checks.driver(seen.facts.driver))
        if seen.facts.links and node.rdma != ():
            yield _finding(node, spark_checks.kernel(seen.facts.kernel))
        yield from _models(node, looked, wanted)
        yield _clock(node, seen.facts)


def _finding(node: Node, diagnosis: Diagnosis) -> NodeFinding:
    return NodeFinding(node.name, diagnosis.subject, diagnosis.verdict, diagnosis.message, diagnosis.remedy)


def _images(node: Node, looked: Mapping[str, _Looked], wanted: _Wanted) -> Iterator[NodeFinding]:
    for name, fingerprint in wanted.images.items():
        there = {other: seen.fingerprints[name] for other, seen in looked.items() if name in seen.fingerprints}
        first = next(iter(there), "")
        like = "as images.lock records it" if fingerprint else f"as on {first}"
        present, expected = there.get(node.name), fingerprint or there.get(first)
        remedy = f"`builder copy {name} {node.name}` brings it"
        if fingerprint is None:
            remedy = f"`builder adopt {name}` gives it a number, and `builder copy` brings that"
        if present is not None and present == expected:
            yield NodeFinding(node.name, "image", "ok", f"{name}, {like}")
        elif present is not None:
            yield NodeFinding(node.name, "image", "error", f"{name} has other content here, not {like}", remedy)
        elif wanted.is_required or there:
            verdict: Verdict = "error" if wanted.is_required else "warning"
            yield NodeFinding(node.name, "image", verdict, f"{name} is missing", remedy)


def _models(node: Node, looked: Mapping[str, _Looked], wanted: _Wanted) -> Iterator[NodeFinding]:
    facts = {name: seen.facts for name, seen in looked.items() if not isinstance(seen.facts, BuilderError)}
    for model, revision in wanted.models.items():
        commits = facts[node.name].commits(model)
        verdict: Verdict = "error" if wanted.is_required else "warning"
        remedy = f"`builder download {model} --to {node.name}` brings it"
        if commits and (revision is None or not huggingface_cache.is_commit(revision) or revision in commits):
            yield NodeFinding(node.name, "model", "ok", model)
        elif commits:
            present = ", ".join(sorted(commit[:7] for commit in commits))
            message = f"{model} is there at {present}, not {(revision or '')[:7]}"
            yield NodeFinding(node.name, "model", verdict, message, remedy)
        elif wanted.is_required or any(other.commits(model) for other in facts.values()):
            yield NodeFinding(node.name, "model", verdict, f"{model} is missing", remedy)


def _clock(node: Node, facts: MachineFacts) -> NodeFinding:
    offset = facts.clock_offset
    apart = max(abs(offset) - facts.clock_error, 0.0)
    if apart <= _CLOCK_WARNING:
        return NodeFinding(node.name, "clock", "ok", "as here")
    message = f"{abs(offset):.0f} s {'ahead' if offset > 0 else 'behind'}"
    verdict: Verdict = "error" if apart > _CLOCK_ERROR else "warning"
    return NodeFinding(node.name, "clock", verdict, message, "`timedatectl set-ntp true`, on the node")

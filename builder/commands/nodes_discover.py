"""The ``nodes discover`` command: each node's address, interface and RoCE devices, from what its machine says."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.definitions import configuration, configuration_text
from builder.definitions.reading import read_text
from builder.distribution import machines
from builder.engine.client import endpoint as endpoints
from builder.errors import BuilderError, UsageError
from builder.nodes import link_choice, machine_facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.definitions.configuration import Configuration
    from builder.engine.client.endpoint import Endpoint
    from builder.events import Report
    from builder.nodes.link_choice import LinkChoice
    from builder.project import Project


@dataclass(frozen=True)
class DiscoveredNode:
    """A node and what its machine says. ``error`` says why nothing is known of it; then ``choice`` is None."""

    node: str
    host: str
    choice: LinkChoice | None
    error: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Discovery:
    """All nodes, and the text of builder.yaml before and after."""

    nodes: tuple[DiscoveredNode, ...]
    before: str
    after: str

    @property
    def changed(self) -> bool:
        """True if builder.yaml would be another one."""
        return self.before != self.after

    def difference(self) -> tuple[str, ...]:
        """The lines of a unified diff of builder.yaml."""
        before, after = self.before.splitlines(), self.after.splitlines()
        file = configuration.FILE
        return tuple(difflib.unified_diff(before, after, f"{file} now", f"{file} then", lineterm=""))


def run(
    project: Project,
    environ: Mapping[str, str],
    names: Sequence[str],
    report: Report,
    timeout: float | None = None,
) -> Discovery:
    """Asks the machines of the nodes with these names, or of all nodes. A machine has ``timeout`` seconds to answer,
    those of builder.yaml where none are given. Nothing is written. Raises UsageError where there is no node to ask."""
    config = configuration.load(project)
    path = project.root / configuration.FILE
    before = read_text(path, configuration.FILE) if path.exists() else ""
    engines = machines.engines(project, environ, names)
    if not engines:
        raise UsageError(
            f"{configuration.FILE} names no nodes",
            hint=f"name them there: `nodes: {{spark1: {endpoints.find(environ).host}, spark2: ssh://USER@HOST}}`",
        )
    nodes = _ask(environ, engines, timeout or config.node_timeout, report)
    chosen = {each.node: _settings(config, each.node, each.choice) for each in nodes if each.choice}
    settings = {node: values for node, values in chosen.items() if values}
    after = configuration_text.with_node_settings(before, settings) if settings else before
    configuration.document(after)
    return Discovery(nodes, before, after)


def write(project: Project, discovery: Discovery) -> None:
    """Writes builder.yaml as it was shown. Raises UsageError where it was changed since, or cannot be written."""
    from builder.storage import atomic_file

    path = project.root / configuration.FILE
    now = read_text(path, configuration.FILE) if path.exists() else ""
    if now != discovery.before:
        raise UsageError(f"{configuration.FILE} was changed meanwhile: nothing was written", hint="run this again")
    try:
        atomic_file.write(path, discovery.after.encode())
    except OSError as error:
        raise UsageError(f"{configuration.FILE}: {error.strerror}") from None


def _ask(
    environ: Mapping[str, str], engines: Mapping[str, Endpoint], seconds: float, report: Report
) -> tuple[DiscoveredNode, ...]:
    def ask(name: str, engine: Endpoint) -> DiscoveredNode:
        return DiscoveredNode(name, engine.host, link_choice.choose(machine_facts.gather(environ, engine.host)))

    return tuple(
        DiscoveredNode(name, engines[name].host, None, error=answer.message, hint=answer.hint)
        if isinstance(answer, BuilderError)
        else answer
        for name, answer in machines.ask(engines, ask, seconds, report).items()
    )


def _settings(config: Configuration, name: str, choice: LinkChoice) -> dict[str, Any]:
    """The settings of builder.yaml for a node; what the user wrote into ``env`` stays."""
    values: dict[str, Any] = {}
    if choice.interface:
        values |= {"address": choice.address, "interface": choice.interface}
    if choice.rdma:
        values["rdma"] = list(choice.rdma)
    written = next((node.env for node in config.nodes if node.name == name), {})
    if missing := {key: value for key, value in choice.env.items() if key not in written}:
        values["env"] = {**written, **missing}
    return values

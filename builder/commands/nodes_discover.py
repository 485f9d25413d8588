"""The ``nodes discover`` command: each node's address, interface and RoCE devices, from what its machine says."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from builder.definitions import configuration, configuration_text
from builder.definitions.reading import read_text
from builder.distribution import machines
from builder.engine.client import endpoint as endpoints
from builder.errors import BuilderError, NodeError, UsageError
from builder.nodes import link_choice, machine_facts, machine_shell, scanning

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.definitions.configuration import Configuration
    from builder.engine.client.endpoint import Endpoint
    from builder.events import Report
    from builder.nodes.link_choice import LinkChoice
    from builder.nodes.scanning import ScannedHost
    from builder.project import Project


@dataclass(frozen=True)
class DiscoveredNode:
    """A node and what its machine says; ``addresses`` are all those it has. ``error`` says why nothing is known of it;
    then ``choice`` is None."""

    node: str
    host: str
    choice: LinkChoice | None
    addresses: frozenset[str] = frozenset()
    error: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Discovery:
    """All nodes, the hosts that a scan left out, and the text of builder.yaml before and after."""

    nodes: tuple[DiscoveredNode, ...]
    skipped: tuple[ScannedHost, ...]
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
    *,
    scan: bool,
    timeout: float | None = None,
) -> Discovery:
    """Asks the machines of the nodes with these names, or of all nodes; with ``scan`` also for nodes that builder.yaml
    does not have yet, in the network of this machine's link. A machine has ``timeout`` seconds to answer, those of
    builder.yaml where none are given. Nothing is written.

    Raises UsageError where there is no node to ask, or no link whose network could be scanned.
    """
    config = configuration.load(project)
    path = project.root / configuration.FILE
    before = read_text(path, configuration.FILE) if path.exists() else ""
    engines = machines.engines(project, environ, names)
    if not engines and not scan:
        raise UsageError(
            f"{configuration.FILE} names no nodes",
            hint=f"name them there, `nodes: {{spark1: {endpoints.find(environ).host}, spark2: ssh://USER@HOST}}`; "
            "or `--scan` looks for them in the network of this machine's link",
        )
    seconds = timeout or config.node_timeout
    nodes = _ask(environ, engines, seconds, report)
    new: dict[str, str] = {}
    skipped: tuple[ScannedHost, ...] = ()
    if scan:
        new, skipped = _scanned(environ, config, nodes)
        scanned = {name: endpoints.of_node(environ, name, engine) for name, engine in new.items()}
        nodes += _ask(environ, scanned, seconds, report)
    settings = {}
    for discovered in nodes:
        choice = discovered.choice
        values = _settings(config, discovered.node, choice) if choice else {}
        if engine := new.get(discovered.node):
            values = {"engine": engine, **values}
        if values:
            settings[discovered.node] = values
    after = configuration_text.with_node_settings(before, settings) if settings else before
    configuration.document(after)
    return Discovery(nodes, skipped, before, after)


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
        facts = machine_facts.gather(environ, engine.host)
        addresses = frozenset(str(address.ip) for interface in facts.interfaces for address in interface.addresses)
        return DiscoveredNode(name, engine.host, link_choice.choose(facts), addresses)

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


def _scanned(
    environ: Mapping[str, str], config: Configuration, nodes: Sequence[DiscoveredNode]
) -> tuple[dict[str, str], tuple[ScannedHost, ...]]:
    """The engines of new nodes by name, this machine among them where it is no node yet, and the hosts left out."""
    engine = endpoints.find(environ).host
    own_engine = engine if machine_shell.is_here(engine) else endpoints.DEFAULT_HOST
    facts = machine_facts.gather(environ, own_engine)
    choice = link_choice.choose(facts)
    interface = facts.interface(choice.interface)
    if interface is None:
        raise UsageError(
            f"there is no network to scan: {'; '.join(choice.problems)}",
            hint="name the nodes in builder.yaml, or give the interface of the link an address",
        )
    hosts = [endpoints.of_node(environ, node.name, node.engine).host for node in config.nodes]
    addresses = {node.address for node in config.nodes} | {urlsplit(host).hostname for host in hosts}
    addresses = addresses.union(*(node.addresses for node in nodes))
    names = {node.name for node in config.nodes}
    new: dict[str, str] = {}
    if not any(map(machine_shell.is_here, hosts)) and not addresses & {str(each.ip) for each in interface.addresses}:
        new[_name(facts.name, names)] = own_engine
    skipped = []
    for host in scanning.scan(environ, interface.addresses[0], interface.name):
        if host.address in addresses:
            continue
        if host.problem:
            skipped.append(host)
        else:
            new[_name(_host_name(environ, host) or host.address, names | set(new))] = host.engine
    return new, tuple(skipped)


def _host_name(environ: Mapping[str, str], host: ScannedHost) -> str:
    try:
        return machine_facts.gather(environ, host.engine).name
    except NodeError:
        return ""


def _name(text: str, taken: set[str]) -> str:
    """A name for a node that no other has."""
    name = re.sub(r"[^a-zA-Z0-9._-]+", "-", text).strip("-._") or "node"
    number = 2
    while name in taken:
        name = f"{text}-{number}"
        number += 1
    return name

"""The .env of a checkout becomes settings in builder.yaml.

The nodes come first, then all other keys.
A key without an equivalent in builder.yaml is reported.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from builder.base import redaction
from builder.base.errors import BuilderError
from builder.base.words import did_you_mean
from builder.definitions import cluster, configuration, container
from builder.definitions.fields import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.base.project import Project
    from builder.definitions.configuration import Node
    from builder.moving.checkout import Assignment, EnvFile


# The nodes of builder.yaml, from what an ``.env`` tells of machines and their link (CLUSTER_NODES, ETH_IF …).

_LINK = {"ETH_IF": "`interface`", "IB_IF": "`rdma`"}
_LOGIN = re.compile(r"(?:[^\s/@:,]+@)?[a-zA-Z0-9.-]+")
# The forms that builder.yaml takes; an Ethernet name has at most 15 letters in Linux.
_FORMS = {
    "CLUSTER_NODES": _LOGIN,
    "COPY_HOSTS": _LOGIN,
    "ETH_IF": re.compile(r"[^\s/,:]{1,15}"),
    "IB_IF": re.compile(r"[A-Za-z0-9_.:-]+"),
}
_NO_NAME = re.compile(r"[^a-zA-Z0-9._-]+")
# The launcher's settings of NCCL for three machines in a ring, whose links between two of them have further addresses.
_RING = "CONTAINER_NCCL_IB_SUBNET_AWARE_ROUTING"


@dataclass(frozen=True)
class NodeSettings:
    """Settings of nodes, by node: what is not in builder.yaml yet. ``notes`` say of a key what became of it."""

    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Host:
    """A machine as a list names it; ``login`` is what ssh takes."""

    login: str
    address: str


def settle_nodes(env: EnvFile, existing: Sequence[Node], own_engine: str, *, replace: bool) -> NodeSettings:
    """The settings for the machines that ``env`` names. A machine that is a node already keeps its name and, unless
    ``replace``, every setting that it has. ``own_engine`` is the address of this machine's engine."""
    cluster, copies = _hosts(env, "CLUSTER_NODES"), _hosts(env, "COPY_HOSTS")
    link = _link(env)
    nodes: dict[str, dict[str, Any]] = {}
    notes: dict[str, list[str]] = {}
    names = {node.name for node in existing}
    own = next((host for host in cluster if is_own(host.address)), None)
    if len(cluster) < 2:
        unused = [key for key in ("CLUSTER_NODES", "ETH_IF", "IB_IF", "LOCAL_IP") if env.value(key)]
        notes |= {key: ["one machine: no node, and no link, is needed"] for key in unused}
        cluster = []
    else:
        notes |= _link_notes(env, own)
    for number, host in enumerate(cluster, start=1):
        node = _node_of(existing, host, is_here=host is own)
        name = node.name if node else _name(host, number, names)
        names.add(name)
        engine = own_engine if host is own else f"ssh://{host.login}"
        values = {"engine": engine, "address": host.address, **link}
        nodes[name] = _missing(values, node, notes, replace=replace) if node else values
        notes.setdefault("CLUSTER_NODES", []).append(f"{name} is {host.address}" + (", this machine" * (host is own)))
    named = {host.address for host in cluster}
    further = [host for host in copies if host.address not in named]
    if len(cluster) > 1 and env.value(_RING):
        ways = (f"{host.address} is another way to one of the nodes" for host in further)
        notes |= {"COPY_HOSTS": [*ways, "its `engine: ssh://ADDRESS` takes it"]} if further else {}
        further = []
    for host in further:
        node = _node_of(existing, host, is_here=False)
        name = node.name if node else _name(host, len(names) + 1, names)
        names.add(name)
        notes.setdefault("COPY_HOSTS", []).append(f"{name} is {host.address}")
        nodes |= {} if node else {name: {"engine": f"ssh://{host.login}"}}
    if copies and "COPY_HOSTS" not in notes:
        notes["COPY_HOSTS"] = ["nodes already; `builder copy IMAGE NODE…` names those that it copies to"]
    _add_unfit(env, notes)
    settings = {name: values for name, values in nodes.items() if values}
    return NodeSettings(settings, {key: "; ".join(dict.fromkeys(texts)) for key, texts in notes.items()})


def is_own(address: str) -> bool:
    """True if ``address`` is one of this machine."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((str(ipaddress.IPv4Address(address)), 0))
    except (OSError, ValueError):
        return False
    return True


def _parts(env: EnvFile, key: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in env.value(key).split(",") if part.strip()))


def _hosts(env: EnvFile, key: str) -> list[_Host]:
    return [_Host(login, login.rpartition("@")[2]) for login in _parts(env, key) if _FORMS[key].fullmatch(login)]


def _link(env: EnvFile) -> dict[str, Any]:
    interfaces, rdma = ([part for part in _parts(env, key) if _FORMS[key].fullmatch(part)] for key in _LINK)
    link: dict[str, Any] = {"interface": interfaces[0]} if interfaces else {}
    return {**link, "rdma": rdma} if rdma else link


def _link_notes(env: EnvFile, own: _Host | None) -> dict[str, list[str]]:
    """The outcome of the keys that belong to the link."""
    notes = {
        key: [f"{name} of each node; `builder nodes discover` asks each machine for its own"]
        for key, name in _LINK.items()
        if env.value(key)
    }
    if local := env.value("LOCAL_IP"):
        text = "none: the node whose address this machine has is this machine"
        if own is None and local in _parts(env, "CLUSTER_NODES"):
            text = "none: this machine has no such address, so all nodes are reached by ssh"
        notes["LOCAL_IP"] = [text]
    return notes


def _add_unfit(env: EnvFile, notes: dict[str, list[str]]) -> None:
    for key, form in _FORMS.items():
        unfit = [part for part in _parts(env, key) if not form.fullmatch(part)]
        if unfit:
            notes.setdefault(key, []).append(f"left out, as no such name: {', '.join(unfit)}")


def _node_of(existing: Sequence[Node], host: _Host, *, is_here: bool) -> Node | None:
    for node in existing:
        at_host = host.address in (node.address, urlsplit(node.engine).hostname)
        is_own_engine = node.engine.startswith("unix://") or node.engine == "default"
        if at_host or (is_here and node.address is None and is_own_engine):
            return node
    return None


def _missing(values: Mapping[str, Any], node: Node, notes: dict[str, list[str]], *, replace: bool) -> dict[str, Any]:
    """Those of ``values`` that the node lacks, and with ``replace`` those that it has otherwise; never its engine."""
    missing: dict[str, Any] = {}
    for setting, value in values.items():
        now = getattr(node, setting)
        now = list(now) if isinstance(now, tuple) else now
        if setting == "engine" or now == value:
            continue
        if now is None or replace:
            missing[setting] = value
        else:
            key = {"interface": "ETH_IF", "rdma": "IB_IF"}.get(setting, "CLUSTER_NODES")
            notes.setdefault(key, []).append(f"{node.name} has another `{setting}` in builder.yaml, which stays")
    return missing


def _name(host: _Host, number: int, taken: set[str]) -> str:
    try:
        ipaddress.ip_address(host.address)
        stem, name = "spark", f"spark{number}"
    except ValueError:
        stem = name = _NO_NAME.sub("-", host.address).strip("-._") or "spark"
    while name in taken:
        number += 1
        name = f"{stem}{number}"
    return name


# builder.yaml with what ``.env`` of a checkout sets: what each key becomes here, and what has no place here.

_VARIABLE = "CONTAINER_"
_OF_NODES = ("CLUSTER_NODES", "COPY_HOSTS", "LOCAL_IP", "ETH_IF", "IB_IF")
_NOT_HERE = {
    "CONTAINER_NAME": "none: each container is named after its recipe, so that several can serve at once",
    "MASTER_PORT": f"none: several nodes meet at port {cluster.MASTER_PORT} of the first, or `-- --master-port N`",
}


@dataclass(frozen=True)
class KeyOutcome:
    """The outcome of a key of ``.env``: ``text`` says what it becomes, or why nothing."""

    key: str
    text: str


@dataclass(frozen=True)
class SettingsPlan:
    """builder.yaml before and after, and what becomes of each key. ``error`` says why it stays as it is."""

    before: str
    after: str
    outcomes: tuple[KeyOutcome, ...]
    error: str = ""

    @property
    def changed(self) -> bool:
        """True if builder.yaml would be another one."""
        return self.before != self.after

    def difference(self) -> tuple[str, ...]:
        """The lines of a unified diff of builder.yaml."""
        before, after = self.before.splitlines(), self.after.splitlines()
        file = configuration.FILE
        return tuple(difflib.unified_diff(before, after, f"{file} now", f"{file} then", lineterm=""))


def plan_settings(project: Project, env: EnvFile, own_engine: str, *, replace: bool) -> SettingsPlan:
    """Plans builder.yaml with the settings of ``env``. What is there already stays, unless ``replace`` is wanted."""
    path = project.root / configuration.FILE
    before = ""
    try:
        before = read_text(path, configuration.FILE) if path.exists() else ""
        existing = configuration.load_configuration(project)
        data = configuration.document(before)
        nodes = settle_nodes(env, existing.nodes, own_engine, replace=replace)
        variables, outcomes = _variables(env, data.get("env") or {}, replace=replace)
        after = configuration.with_node_settings(before, nodes.nodes) if nodes.nodes else before
        after = configuration.with_environment(after, variables) if variables else after
        configuration.document(after)
    except BuilderError as error:
        return SettingsPlan(before, before, (), error.message)
    outcomes |= {key: KeyOutcome(key, text) for key, text in nodes.notes.items()}
    others = {key: _other(key) for key in env.assignments if key not in outcomes}
    every = {**outcomes, **others}
    return SettingsPlan(before, after, tuple(every[key] for key in env.assignments))


def _variables(
    env: EnvFile, existing: Mapping[str, object], *, replace: bool
) -> tuple[dict[str, str | None], dict[str, KeyOutcome]]:
    """The variables of all containers, None for one that is taken from the environment, and what became of each."""
    variables: dict[str, str | None] = {}
    outcomes = {}
    for key, assignment in env.assignments.items():
        name = key.removeprefix(_VARIABLE)
        if name in (key, "", "NAME"):
            continue
        outcomes[key], value, wanted = _variable(assignment, name)
        if not wanted or (name in existing and _same(existing[name], value)):
            continue
        if name in existing and not replace:
            outcomes[key] = KeyOutcome(key, f"`env` has another {name} already, which stays")
            continue
        variables[name] = value
    return variables, outcomes


def _variable(assignment: Assignment, name: str) -> tuple[KeyOutcome, str | None, bool]:
    """The outcome of a variable, its value in builder.yaml, and whether it is written there at all."""
    shell = f"`export {name}=…` in your shell's profile"
    if name in container.SECRETS:
        text = f"none: every server has {name} of whoever starts it; {shell}"
        return KeyOutcome(assignment.name, text), None, False
    if redaction.looks_secret(name, assignment.value):
        text = f"`env: {name}`, without its value, as it looks like a secret: {shell}"
        return KeyOutcome(assignment.name, text), None, True
    return KeyOutcome(assignment.name, f"`env: {name}`"), assignment.value, True


def _same(existing: object, value: str | None) -> bool:
    from builder.definitions.fields import env_text

    if existing is None or value is None:
        return existing is value
    return isinstance(existing, str | int | float | bool) and env_text(existing) == value


def _other(key: str) -> KeyOutcome:
    if key in _NOT_HERE:
        return KeyOutcome(key, _NOT_HERE[key])
    if key in _OF_NODES:
        return KeyOutcome(key, "empty")
    suggestion = did_you_mean(key, (*_OF_NODES, *_NOT_HERE))
    return KeyOutcome(key, f"none: nothing reads it{f'; {suggestion}' if suggestion else ''}")

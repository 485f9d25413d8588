"""The .env of a checkout becomes settings in builder.yaml; a key without an equivalent there is reported."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from builder.base import redaction
from builder.base.errors import BuilderError
from builder.base.words import did_you_mean
from builder.definitions import cluster, configuration, container
from builder.definitions.fields import env_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.base.project import Project
    from builder.definitions.configuration import Node
    from builder.moving.checkout import EnvFile

# The lists of an ``.env``, in the forms that builder.yaml takes; an Ethernet name has at most 15 letters in Linux.
_LISTS = {
    "CLUSTER_NODES": re.compile(r"(?:[^\s/@:,]+@)?[a-zA-Z0-9.-]+"),
    "ETH_IF": re.compile(r"[^\s/,:]{1,15}"),
    "IB_IF": re.compile(r"[A-Za-z0-9_.:-]+"),
}
# The key that sets each setting of a node.
_KEYS = {"address": "CLUSTER_NODES", "interface": "ETH_IF", "rdma": "IB_IF"}
_DISCOVERS = "`builder nodes discover` asks each machine for its own"
_NOT_HERE = {
    "CONTAINER_NAME": "none: each container is named after its recipe, so that several can serve at once",
    "MASTER_PORT": f"none: several nodes meet at port {cluster.MASTER_PORT} of the first, or `-- --master-port N`",
    "COPY_HOSTS": "none: `builder copy IMAGE NODE…` copies to nodes; `engine: ssh://HOST` makes a machine a node",
    "LOCAL_IP": "none: the node whose address this machine has is this machine; all others are reached by ssh",
}


@dataclass(frozen=True)
class SettingsPlan(configuration.ConfigurationChange):
    """builder.yaml before and after, what each key of ``.env`` becomes, and an ``error`` that keeps it as it is."""

    outcomes: Mapping[str, str]
    error: str = ""


def plan_settings(project: Project, env: EnvFile, own_engine: str, *, replace: bool) -> SettingsPlan:
    """Plans builder.yaml with the settings of ``env``. What is there already stays, unless ``replace`` is wanted."""
    before = ""
    try:
        before = configuration.present_text(project)
        existing = configuration.load_configuration(project)
        nodes, outcomes = settle_nodes(env, existing.nodes, own_engine, replace=replace)
        variables = _variables(env, configuration.document(before).get("env") or {}, outcomes, replace=replace)
        after = configuration.with_node_settings(before, nodes) if nodes else before
        after = configuration.with_environment(after, variables) if variables else after
        configuration.document(after)
    except BuilderError as error:
        return SettingsPlan(before, before, {}, error.message)
    return SettingsPlan(before, after, {key: outcomes.get(key) or _other(key) for key in env.values})


def settle_nodes(
    env: EnvFile, existing: Sequence[Node], own_engine: str, *, replace: bool
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The settings, by node, for the machines that ``env`` names, as far as builder.yaml lacks them, and what each key
    becomes. A machine that is a node already keeps its name and, unless ``replace``, every setting that it has.
    ``own_engine`` is the address of this machine's engine."""
    listed = {key: [part for part in map(str.strip, env.value(key).split(",")) if part] for key in _LISTS}
    hosts, interfaces, rdma = (
        [each for each in dict.fromkeys(listed[key]) if _LISTS[key].fullmatch(each)] for key in _LISTS
    )
    if len(hosts) < 2:
        return {}, {key: "one machine: no node, and no link, is needed" for key in _LISTS if env.value(key)}
    notes: dict[str, list[str]] = {key: [] for key in _LISTS}
    notes["ETH_IF"] += [f"`interface` of each node; {_DISCOVERS}"] * bool(interfaces)
    notes["IB_IF"] += [f"`rdma` of each node; {_DISCOVERS}"] * bool(rdma)
    link = {**({"interface": interfaces[0]} if interfaces else {}), **({"rdma": rdma} if rdma else {})}
    own = next((login for login in hosts if is_own(_address(login))), None)
    taken = {node.name for node in existing}
    nodes: dict[str, dict[str, Any]] = {}
    for number, login in enumerate(hosts, start=1):
        address, is_here = _address(login), login == own
        node = next((each for each in existing if _is_at(each, address, is_here=is_here)), None)
        name = node.name if node else _name(address, number, taken)
        taken.add(name)
        values = {"engine": own_engine if is_here else f"ssh://{login}", "address": address, **link}
        nodes.setdefault(name, _missing(values, node, notes, replace=replace) if node else values)
        notes["CLUSTER_NODES"].append(f"{name} is {address}" + (", this machine" if is_here else ""))
    for key, parts in listed.items():
        if unfit := [part for part in parts if not _LISTS[key].fullmatch(part)]:
            notes[key].append(f"left out, not a valid name: {', '.join(unfit)}")
    settings = {name: values for name, values in nodes.items() if values}
    return settings, {key: "; ".join(dict.fromkeys(texts)) for key, texts in notes.items() if texts}


def _missing(values: Mapping[str, Any], node: Node, notes: dict[str, list[str]], *, replace: bool) -> dict[str, Any]:
    """Those of ``values`` that the node lacks, and with ``replace`` those that differ; never its engine."""
    missing: dict[str, Any] = {}
    for setting, key in _KEYS.items():
        now = getattr(node, setting)
        now = list(now) if isinstance(now, tuple) else now
        if setting not in values or now == values[setting]:
            continue
        if now is None or replace:
            missing[setting] = values[setting]
        else:
            notes[key].append(f"{node.name} keeps its other `{setting}` in builder.yaml")
    return missing


def is_own(address: str) -> bool:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((str(ipaddress.IPv4Address(address)), 0))
    except (OSError, ValueError):
        return False
    return True


def _address(login: str) -> str:
    return login.rpartition("@")[2]


def _is_at(node: Node, address: str, *, is_here: bool) -> bool:
    is_own = is_here and (node.engine.startswith("unix://") or node.engine == "default")
    return address in (node.address, urlsplit(node.engine).hostname) or (is_own and node.address is None)


def _name(address: str, number: int, taken: set[str]) -> str:
    try:
        ipaddress.ip_address(address)
        stem, name = "spark", f"spark{number}"
    except ValueError:
        stem = name = address.strip("-.") or "spark"
    while name in taken:
        number += 1
        name = f"{stem}{number}"
    return name


def _variables(
    env: EnvFile, existing: Mapping[str, Any], outcomes: dict[str, str], *, replace: bool
) -> dict[str, str | None]:
    """The variables that builder.yaml lacks, None for one from the environment; adds to ``outcomes``."""
    variables: dict[str, str | None] = {}
    for key, value in env.values.items():
        name = key.removeprefix("CONTAINER_")
        if name in (key, "", "NAME"):
            continue
        shell = f"`export {name}=…` in your shell's profile"
        if name in container.SECRETS:
            outcomes[key] = f"none: a server gets {name} from the environment of whoever starts it; {shell}"
            continue
        wanted, outcomes[key] = None if redaction.looks_secret(name, value) else value, f"`env: {name}`"
        if wanted is None:
            outcomes[key] += f", without its value, which looks like a secret: {shell}"
        is_other = name in existing and wanted != (None if existing[name] is None else env_text(existing[name]))
        if name not in existing or (is_other and replace):
            variables[name] = wanted
        elif is_other:
            outcomes[key] = f"`env` keeps its other {name}"
    return variables


def _other(key: str) -> str:
    if key in _NOT_HERE:
        return _NOT_HERE[key]
    if key in _LISTS:
        return "empty"
    suggestion = did_you_mean(key, (*_LISTS, *_NOT_HERE))
    return f"none: nothing reads it{f'; {suggestion}' if suggestion else ''}"

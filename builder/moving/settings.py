"""The .env of a checkout becomes settings in builder.yaml; a key without an equivalent there is reported."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections import defaultdict
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

_LOGIN = re.compile(r"(?:[^\s/@:,]+@)?[a-zA-Z0-9.-]+")
# The lists of an ``.env``, in the forms that builder.yaml takes; an Ethernet name has at most 15 letters in Linux.
_LISTS = {
    "CLUSTER_NODES": _LOGIN,
    "COPY_HOSTS": _LOGIN,
    "ETH_IF": re.compile(r"[^\s/,:]{1,15}"),
    "IB_IF": re.compile(r"[A-Za-z0-9_.:-]+"),
}
# The key that sets each setting of a node.
_KEYS = {"address": "CLUSTER_NODES", "interface": "ETH_IF", "rdma": "IB_IF"}
# The launcher's settings of NCCL for three machines in a ring, whose links between two of them have further addresses.
_RING = "CONTAINER_NCCL_IB_SUBNET_AWARE_ROUTING"
_OF_NODES = (*_LISTS, "LOCAL_IP")
_NOT_HERE = {
    "CONTAINER_NAME": "none: each container is named after its recipe, so that several can serve at once",
    "MASTER_PORT": f"none: several nodes meet at port {cluster.MASTER_PORT} of the first, or `-- --master-port N`",
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
    fit = {key: [part for part in dict.fromkeys(parts) if _LISTS[key].fullmatch(part)] for key, parts in listed.items()}
    hosts, copies, interfaces, rdma = fit.values()
    hosts = hosts if len(hosts) > 1 else []
    own = next((login for login in hosts if is_own(_address(login))), None)
    notes = defaultdict(list, _link_notes(env, is_cluster=bool(hosts), has_own=own is not None))
    link = {**({"interface": interfaces[0]} if interfaces else {}), **({"rdma": rdma} if rdma else {})}
    wanted: list[tuple[str, str, dict[str, Any]]] = []
    for login in hosts:
        engine = own_engine if login == own else f"ssh://{login}"
        wanted.append(("CLUSTER_NODES", login, {"engine": engine, "address": _address(login), **link}))
    further = [login for login in copies if _address(login) not in set(map(_address, hosts))]
    if hosts and further and env.value(_RING):
        notes["COPY_HOSTS"] = [f"{_address(login)} is another way to one of the nodes" for login in further]
        notes["COPY_HOSTS"].append("its `engine: ssh://ADDRESS` takes it")
    elif further:
        wanted += [("COPY_HOSTS", login, {"engine": f"ssh://{login}"}) for login in further]
    elif copies:
        notes["COPY_HOSTS"] = ["nodes already; `builder copy IMAGE NODE…` names those that it copies to"]
    taken = {node.name for node in existing}
    nodes: dict[str, dict[str, Any]] = {}
    for number, (key, login, values) in enumerate(wanted, start=1):
        address, is_here = _address(login), login == own
        node = next((each for each in existing if _is_at(each, address, is_here=is_here)), None)
        name = node.name if node else _name(address, number, taken)
        taken.add(name)
        nodes.setdefault(name, _missing(values, node, notes, replace=replace) if node else values)
        notes[key].append(f"{name} is {address}" + (", this machine" if is_here else ""))
    for key, parts in listed.items():
        if unfit := [part for part in parts if part not in fit[key]]:
            notes[key].append(f"left out, as no such name: {', '.join(unfit)}")
    settings = {name: values for name, values in nodes.items() if values}
    return settings, {key: "; ".join(dict.fromkeys(texts)) for key, texts in notes.items()}


def _link_notes(env: EnvFile, *, is_cluster: bool, has_own: bool) -> dict[str, list[str]]:
    """The outcome of the keys that belong to the link between machines."""
    if not is_cluster:
        keys = ("CLUSTER_NODES", "ETH_IF", "IB_IF", "LOCAL_IP")
        return {key: ["one machine: no node, and no link, is needed"] for key in keys if env.value(key)}
    asks = "of each node; `builder nodes discover` asks each machine for its own"
    texts = {"ETH_IF": f"`interface` {asks}", "IB_IF": f"`rdma` {asks}"}
    texts["LOCAL_IP"] = "none: the node whose address this machine has is this machine"
    if not has_own and env.value("LOCAL_IP") in env.value("CLUSTER_NODES"):
        texts["LOCAL_IP"] = "none: this machine has no such address, so all nodes are reached by ssh"
    return {key: [text] for key, text in texts.items() if env.value(key)}


def _missing(values: Mapping[str, Any], node: Node, notes: dict[str, list[str]], *, replace: bool) -> dict[str, Any]:
    """Those of ``values`` that the node lacks, and with ``replace`` those that it has otherwise; never its engine."""
    missing: dict[str, Any] = {}
    for setting, key in _KEYS.items():
        now = getattr(node, setting)
        now = list(now) if isinstance(now, tuple) else now
        if setting not in values or now == values[setting]:
            continue
        if now is None or replace:
            missing[setting] = values[setting]
        else:
            notes[key].append(f"{node.name} has another `{setting}` in builder.yaml, which stays")
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
            outcomes[key] = f"none: every server has {name} of whoever starts it; {shell}"
            continue
        wanted, outcomes[key] = None if redaction.looks_secret(name, value) else value, f"`env: {name}`"
        if wanted is None:
            outcomes[key] += f", without its value, as it looks like a secret: {shell}"
        is_other = name in existing and wanted != (None if existing[name] is None else env_text(existing[name]))
        if name not in existing or (is_other and replace):
            variables[name] = wanted
        elif is_other:
            outcomes[key] = f"`env` has another {name} already, which stays"
    return variables


def _other(key: str) -> str:
    if key in _NOT_HERE:
        return _NOT_HERE[key]
    if key in _OF_NODES:
        return "empty"
    suggestion = did_you_mean(key, (*_OF_NODES, *_NOT_HERE))
    return f"none: nothing reads it{f'; {suggestion}' if suggestion else ''}"

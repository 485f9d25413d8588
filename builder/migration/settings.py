"""builder.yaml with what ``.env`` of a checkout sets: what each key becomes here, and what has no place here."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder import redaction
from builder.definitions import configuration, configuration_text
from builder.definitions.reading import read_text
from builder.definitions.recipes import cluster, container
from builder.errors import BuilderError
from builder.migration import node_settings
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.migration.env_file import Assignment, EnvFile
    from builder.project import Project

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


def plan(project: Project, env: EnvFile, own_engine: str, *, replace: bool) -> SettingsPlan:
    """Plans builder.yaml with the settings of ``env``. What is there already stays, unless ``replace`` is wanted."""
    path = project.root / configuration.FILE
    before = ""
    try:
        before = read_text(path, configuration.FILE) if path.exists() else ""
        existing = configuration.load(project)
        data = configuration.document(before)
        nodes = node_settings.settle(env, existing.nodes, own_engine, replace=replace)
        variables, outcomes = _variables(env, data.get("env") or {}, replace=replace)
        after = configuration_text.with_node_settings(before, nodes.nodes) if nodes.nodes else before
        after = configuration_text.with_environment(after, variables) if variables else after
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
    from builder.definitions.reading import env_text

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

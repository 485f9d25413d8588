"""The container settings that a user adds: volumes, environment variables, ports, memory, earlyoom.

They are written on the command line, in a recipe (``volumes``, ``env``) and in builder.yaml. The command line counts
before the recipe, the recipe before builder.yaml, and that before the defaults of `container`. The value of a secret is
never written down: labels, exported files and errors have its name alone, and whoever starts the container has the
value in the environment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from builder import redaction
from builder.definitions.recipes import publishing, volumes
from builder.definitions.requested_options import RequestedOptions
from builder.errors import FileProblemsError, Problem, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from builder.definitions.recipes.publishing import PublishedPort
    from builder.definitions.recipes.recipe import Recipe
    from builder.definitions.recipes.volumes import Mount

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SIZE = re.compile(r"[1-9][0-9]*[kmg]", re.ASCII)


@dataclass(frozen=True)
class ContainerOptions:
    """The options as read. A variable whose value is None is taken from the environment of whoever starts the
    container; ``secrets`` are the values of such variables that were given, which are never written down."""

    volumes: tuple[Mount, ...] = ()
    env: Mapping[str, str | None] = field(default_factory=dict)
    publish: tuple[PublishedPort, ...] = ()
    earlyoom: bool = False
    memory: str = ""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def without_values(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """The variables that have a value neither here nor in ``environ``."""
        return tuple(
            name
            for name, value in self.env.items()
            if value is None and name not in self.secrets and name not in environ
        )


NONE = ContainerOptions()


def settle(
    configured: RequestedOptions,
    recipe: Recipe,
    typed: RequestedOptions,
    environ: Mapping[str, str],
    folders: tuple[Path, Path],
) -> tuple[ContainerOptions, Recipe]:
    """The options for a container of ``recipe``, those that are ``typed`` before those of builder.yaml
    (``configured``), and the recipe without the variables that are typed. Relative paths are in one of the ``folders``:
    the project's for what files say, the current one for what is typed.

    Raises UsageError for an option that is wrong, FileProblemsError for a volume of the recipe that is.
    """
    project, current = folders
    env_of_file, secrets_of_file = _environment(configured.env, "env", "in builder.yaml")
    env_typed, secrets_typed = _environment(typed.env, "--env", "")
    mounts = (
        *_volumes(configured.volumes, environ, project, "builder.yaml: volumes"),
        *_volumes_of_recipe(recipe, environ, project),
        *_volumes(typed.volumes, environ, current, "--volume"),
    )
    env = {**{name: value for name, value in env_of_file.items() if name not in recipe.env}, **env_typed}
    known_secrets = {**secrets_of_file, **secrets_typed}
    where = "--publish" if typed.publish else "builder.yaml: publish"
    memory = typed.memory or configured.memory
    if memory and not _SIZE.fullmatch(memory):
        raise UsageError(
            f"{'--memory' if typed.memory else 'builder.yaml: memory'} {memory}: a size such as 100g is wanted"
        )
    earlyoom = configured.earlyoom if typed.earlyoom is None else typed.earlyoom
    options = ContainerOptions(
        volumes=volumes.merged((), mounts),
        env=env,
        publish=tuple(_published(text, where) for text in typed.publish or configured.publish),
        earlyoom=bool(earlyoom),
        memory=memory,
        secrets={name: value for name, value in known_secrets.items() if env.get(name, "") is None},
    )
    return options, replace(recipe, env={name: value for name, value in recipe.env.items() if name not in env_typed})


def kept(typed: RequestedOptions, environ: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """``typed`` for a label, for when the server is started again from any folder: without the values of secrets."""
    env, _ = _environment(typed.env, "--env", "")
    parts = {
        "volumes": [str(mount) for mount in _volumes(typed.volumes, environ, folder, "--volume")],
        "env": [name if value is None else f"{name}={value}" for name, value in env.items()],
        "publish": list(typed.publish),
        "earlyoom": typed.earlyoom,
        "memory": typed.memory,
    }
    return {name: part for name, part in parts.items() if part not in ([], None, "")}


def again(before: Mapping[str, Any], typed: RequestedOptions) -> RequestedOptions:
    """An earlier request as it was ``kept``, with what is ``typed`` now in its place or beside it."""
    return RequestedOptions(
        volumes=(*before.get("volumes", ()), *typed.volumes),
        env=(*before.get("env", ()), *typed.env),
        publish=typed.publish or tuple(before.get("publish", ())),
        earlyoom=before.get("earlyoom") if typed.earlyoom is None else typed.earlyoom,
        memory=typed.memory or before.get("memory", ""),
    )


def typed_variables(typed: RequestedOptions) -> ContainerOptions:
    """The variables of the command line alone."""
    return ContainerOptions(env=_environment(typed.env, "--env", "")[0])


def with_variables(env: Mapping[str, str], options: ContainerOptions) -> dict[str, str]:
    """``env`` with the variables of ``options`` in it, but without those whose value comes from the environment."""
    variables = {**env, **options.env}
    return {name: value for name, value in variables.items() if value is not None}


def require_values(options: ContainerOptions, environ: Mapping[str, str]) -> None:
    """Raises UsageError where a variable should come from ``environ`` and is not there."""
    if missing := options.without_values(environ):
        first = missing[0]
        raise UsageError(
            f"{', '.join(missing)}: wanted from your environment, and not set there",
            hint=f"set it, or give `--env {first}=…`; the value of what looks like a secret is kept nowhere",
        )


def _environment(texts: Sequence[str], option: str, where: str) -> tuple[dict[str, str | None], dict[str, str]]:
    """The variables, None for a secret's value, and the secrets. What stands after the `=` is in no message."""
    env: dict[str, str | None] = {}
    values: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not _NAME.fullmatch(name) or "\0" in value:
            shown = f"{name}=…" if sign else "…"
            raise UsageError(" ".join(filter(None, [f"{option} {shown}", where])) + ": NAME=VALUE, or NAME, is wanted")
        values.pop(name, None)
        if sign and not redaction.looks_secret(name, value):
            env[name] = value
        else:
            env[name] = None
            if sign:
                values[name] = value
    return env, values


def _volumes(texts: Sequence[str], environ: Mapping[str, str], folder: Path, where: str) -> list[Mount]:
    mounts = []
    for text in texts:
        try:
            mounts.append(volumes.parse(text, environ, folder))
        except ValueError as error:
            raise UsageError(f"{where} {text}: {error}") from None
    return mounts


def _volumes_of_recipe(recipe: Recipe, environ: Mapping[str, str], folder: Path) -> list[Mount]:
    mounts, problems = [], []
    for index, text in enumerate(recipe.volumes):
        try:
            mounts.append(volumes.parse(text, environ, folder))
        except ValueError as error:
            problems.append(Problem(recipe.location("volumes", index), f"`{text}`: {error}"))
    if problems:
        raise FileProblemsError(tuple(problems))
    return mounts


def _published(text: str, where: str) -> PublishedPort:
    try:
        return publishing.parse(text)
    except ValueError as error:
        raise UsageError(f"{where} {text}: {error}") from None

"""The subject of a run is the image, the model and the recipe parts that the run belongs to.

This page gives the subject that a run would have now, from images.lock and the project's files alone;
`standing.stale_reasons` compares it with what a run recorded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING

from builder.base import files, hub_cache
from builder.base.errors import BuilderError, FileProblemsError, UsageError
from builder.base.words import sha256_of
from builder.definitions import command, container, recipe
from builder.evidence.run_record import Subject

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.definitions.configuration import RequiredEvidence
    from builder.definitions.recipe import Recipe
    from builder.evidence.run_record import Kind
    from builder.lock.model import ImageName, Lock, Pairing

NOTHING: Mapping[str, str] = MappingProxyType({})

_LARGEST_TEMPLATE = 4 * 1024 * 1024
# The options that decide how messages become a prompt, and an answer becomes messages.
_OF_BEHAVIOUR = frozenset(
    {
        *("chat-template", "chat-template-content-format", "default-chat-template-kwargs"),
        *("enable-auto-tool-choice", "exclude-tools-when-tool-choice-none"),
        *("reasoning-parser", "reasoning-parser-plugin", "tool-call-parser", "tool-parser-plugin", "tool-server"),
        *("tokenizer", "tokenizer-mode", "tokenizer-revision"),
    }
)
# The options that say where a server is reached, and what it calls itself.
_OF_THE_ADDRESS = frozenset({"api-key", "host", "model", "port", "revision", "served-model-name", "uds"})
_KEYS = frozenset({"VLLM_API_KEY"})


@dataclass(frozen=True)
class ServedFacts:
    """The parts of a subject that a recipe gives. ``arguments`` are digests by kind, none where its command cannot be
    rendered."""

    file: str
    model: str | None
    revision: str | None
    arguments: Mapping[Kind, str]
    template: str | None
    requires: RequiredEvidence


def present_subject(
    project: Project,
    lock: Lock,
    image: ImageName,
    model: str | None,
    kind: Kind,
    *,
    recipe: Recipe | None = None,
    environ: Mapping[str, str] = NOTHING,
    overrides: Mapping[str, str] = NOTHING,
) -> Subject:
    """The present subject of a run of this kind. ``recipe`` is that of the pairing unless given; ``environ`` leads to
    the models' cache and to volumes. A part that is not known is None."""
    pairing = pairing_of(lock, image, model)
    if recipe is None and pairing and pairing.recipe:
        recipe = recorded_recipe(project, pairing.recipe)
    facts = served_facts(project, recipe, overrides, environ) if recipe else None
    return subject_with(lock, image, model, kind, facts, environ, overrides)


def subject_with(
    lock: Lock,
    image: ImageName,
    model: str | None,
    kind: Kind,
    facts: ServedFacts | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, str] = NOTHING,
) -> Subject:
    """The present subject of a run of this kind with a recipe of these facts."""
    record, pairing = lock.image(image), pairing_of(lock, image, model)
    revision = pairing.revision if pairing else None
    if facts and facts.model == model and facts.revision:
        revision = facts.revision
    if model and revision and not hub_cache.is_commit(revision):
        revision = hub_cache.revision(environ, model, revision) or revision
    return Subject(
        image=str(image),
        fingerprint=record.fingerprint if record else "",
        model=model,
        revision=revision,
        template=facts.template if facts else None,
        recipe=facts.file if facts else pairing.recipe if pairing else None,
        arguments=facts.arguments.get(kind) if facts else None,
        overrides=dict(overrides),
    )


def pairing_of(lock: Lock, image: ImageName, model: str | None) -> Pairing | None:
    """The pairing of a model with an image, the present one or an earlier one; None where they never were."""
    paired = lock.models.get(model or "")
    pairings = (paired.pairing, *paired.previous) if paired else ()
    return next((pairing for pairing in pairings if pairing.image == image), None)


def recorded_recipe(project: Project, file: str) -> Recipe | None:
    """A recipe that images.lock, or the label of a server, names; None where it is gone, or cannot be read."""
    try:
        path = recipe.recorded(project, file)
        return recipe.load_recipe(project, path) if path else None
    except BuilderError:
        return None


def served_facts(
    project: Project, used: Recipe, overrides: Mapping[str, str], environ: Mapping[str, str]
) -> ServedFacts:
    digests: dict[Kind, str] = {}
    template = None
    with suppress(FileProblemsError, UsageError):
        words = command.render_command(used, overrides).words
        server = of_arguments("bench", words, used.env)  # probes and comparisons depend on the same as a benchmark
        digests = {"prove": of_arguments("prove", words), "bench": server, "probe": server, "same": server}
        template = _mounted_template(project, used, words, environ)
    return ServedFacts(used.file, used.model, used.revision, digests, template, used.requires)


def of_arguments(kind: Kind, words: Sequence[str], env: Mapping[str, object] = NOTHING) -> str:
    """The digest (``sha256:…``) over the part of a serve command that a run of this kind depends on: for a proof the
    template, the parsers and the like, else every option, and the environment, but the model, its revision and the
    address. ``words`` are those of a `ServeCommand`, ``env`` is the recipe's. The order of options does not count."""
    options = options_of(kind, words)
    variables = {} if kind == "prove" else {name: str(env[name]) for name in env if name not in _KEYS}
    text = json.dumps([options, variables], sort_keys=True)
    return sha256_of(text.encode(errors="replace"))


def options_of(kind: Kind, words: Sequence[str]) -> dict[str, list[str | None]]:
    """The options of a serve command that a run of this kind depends on, by their names, each with its values."""
    options: dict[str, list[str | None]] = {}
    for used in command.options(words):
        name = used.option.lstrip("-").replace("_", "-")
        if name in _OF_BEHAVIOUR if kind == "prove" else name not in _OF_THE_ADDRESS:
            values = command.values(words, used.option) if used.goes_on else (used.value,)
            options[name] = [None if value is None else _plain(value) for value in values]
    return options


def _plain(value: str) -> str:
    """The value of an option, that of one that takes JSON whatever its layout is."""
    if not value.startswith(("{", "[")):
        return value
    try:
        return json.dumps(json.loads(value), sort_keys=True)
    except (ValueError, RecursionError):
        return value


def _mounted_template(project: Project, used: Recipe, words: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """The digest of the chat template, where the recipe mounts it from this machine or has it in its command; None of
    one in the image or the model."""
    value = command.option(words, "--chat-template", "--chat_template")
    if not value:
        return None
    if "{" in value or "\n" in value:
        return sha256_of(value.encode(errors="replace"))
    path = mounted(project, used, value, environ)
    with suppress(OSError):
        return sha256_of(files.read_plain_file(path.resolve(), _LARGEST_TEMPLATE)) if path else None
    return None


def mounted(project: Project, used: Recipe, path: str, environ: Mapping[str, str]) -> Path | None:
    """The file or folder of this machine at a path in the server's container; None where the recipe mounts none."""
    for text in reversed(used.volumes):
        with suppress(ValueError):
            mount = container.parse_volume(text, environ, project.root)
            return Path(mount.source, PurePosixPath(path).relative_to(mount.target))
    return None

"""The subject that a run of a pairing would have now, from images.lock and the project's files alone.

A run records the same parts of what it really used (`of_arguments`, `of_template`); `staleness` compares the two.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from builder.definitions.recipes import arguments, command, finding, option_places, volumes
from builder.definitions.recipes import recipe as recipes
from builder.errors import FileProblemsError, UnsafePathError, UsageError
from builder.evidence.present_subjects import NOTHING, PresentSubjects, RequiredRuns, ServedFacts
from builder.storage import regular_file

if TYPE_CHECKING:
    from builder.definitions.recipes.recipe import Recipe
    from builder.evidence.record import Kind, Subject
    from builder.lock.model import ImageName, Lock, Pairing
    from builder.project import Project

_DIFFERING: tuple[Kind, Kind] = ("prove", "bench")  # a probe depends on the same as a benchmark
_LARGEST_TEMPLATE = 4 * 1024 * 1024
# The options that decide how messages become a prompt, and an answer becomes messages.
_OF_BEHAVIOUR = frozenset(
    {
        "chat-template",
        "chat-template-content-format",
        "default-chat-template-kwargs",
        "enable-auto-tool-choice",
        "exclude-tools-when-tool-choice-none",
        "reasoning-parser",
        "reasoning-parser-plugin",
        "tokenizer",
        "tokenizer-mode",
        "tokenizer-revision",
        "tool-call-parser",
        "tool-parser-plugin",
        "tool-server",
    }
)
# The options that say where a server is reached, and what it calls itself.
_OF_THE_ADDRESS = frozenset({"api-key", "host", "model", "port", "revision", "served-model-name", "uds"})

_KEYS = frozenset({"VLLM_API_KEY"})


def present(
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
    """The subject of a run of this kind, on what the files say now. ``recipe`` is that of the pairing unless given;
    ``environ`` leads to the models' cache and to volumes with variables in their names. A part that cannot be told is
    None: nothing is compared with it."""
    subjects = PresentSubjects(lock, environ, lambda file: of_recorded_recipe(project, file, environ))
    if recipe is None and overrides:
        pairing = pairing_of(lock, image, model)
        recipe = _recorded(project, pairing.recipe) if pairing and pairing.recipe else None
    if recipe is None:
        return replace(subjects.of(image, model, kind), overrides=dict(overrides))
    return subjects.with_recipe(image, model, kind, _facts(project, recipe, overrides, environ), overrides)


def of_arguments(kind: Kind, words: Sequence[str], env: Mapping[str, object] = NOTHING) -> str:
    """The digest (``sha256:…``) over the part of a serve command that a run of this kind depends on: for a proof the
    template, the parsers and the like, else every option, and the environment, but the model, its revision and the
    address. ``words`` are those of a `ServeCommand`, ``env`` is the recipe's. The order of options does not count."""
    options: dict[str, list[str | None]] = {}
    for used in option_places.options(words):
        name = used.option.lstrip("-").replace("_", "-")
        wanted = name in _OF_BEHAVIOUR if kind == "prove" else name not in _OF_THE_ADDRESS
        if wanted:
            values = arguments.values(words, used.option) if used.goes_on else (used.value,)
            options[name] = [None if value is None else _plain(value) for value in values]
    variables = {} if kind == "prove" else {name: str(env[name]) for name in env if name not in _KEYS}
    text = json.dumps([options, variables], sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode(errors='replace')).hexdigest()}"


def of_template(content: bytes) -> str:
    """The digest (``sha256:…``) of a chat template."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def of_recorded_recipe(project: Project, file: str, environ: Mapping[str, str]) -> ServedFacts | None:
    """The facts of a recipe that images.lock names; None where it is gone, or cannot be read."""
    recipe = _recorded(project, file)
    return _facts(project, recipe, NOTHING, environ) if recipe else None


def pairing_of(lock: Lock, image: ImageName, model: str | None) -> Pairing | None:
    """The pairing of a model with an image, the present one or an earlier one; None where they never were."""
    paired = lock.models.get(model or "")
    pairings = (paired.pairing, *paired.previous) if paired else ()
    return next((pairing for pairing in pairings if pairing.image == image), None)


def _plain(value: str) -> str:
    """The value of an option, that of one that takes JSON whatever its layout is."""
    if not value.startswith(("{", "[")):
        return value
    try:
        return json.dumps(json.loads(value), sort_keys=True)
    except (ValueError, RecursionError):
        return value


def _recorded(project: Project, file: str) -> Recipe | None:
    try:
        path = finding.recorded(project, file)
        return recipes.load(project, path) if path else None
    except (FileProblemsError, UnsafePathError, UsageError):
        return None


def _facts(project: Project, recipe: Recipe, overrides: Mapping[str, str], environ: Mapping[str, str]) -> ServedFacts:
    requires = RequiredRuns(recipe.requires.probes, bool(recipe.requires.figures))
    try:
        words = command.render(recipe, overrides).words
    except (FileProblemsError, UsageError):
        return ServedFacts(recipe.file, recipe.model, recipe.revision, {}, None, is_whole=True, requires=requires)
    behaviour, server = (of_arguments(kind, words, recipe.env) for kind in _DIFFERING)
    digests: dict[Kind, str] = {"prove": behaviour, "bench": server, "probe": server}
    template = _mounted_template(project, recipe, words, environ)
    names_template = arguments.option(words, "--chat-template", "--chat_template") is not None
    is_whole = not (names_template and recipe.volumes)
    return ServedFacts(recipe.file, recipe.model, recipe.revision, digests, template, is_whole, requires)


def _mounted_template(project: Project, used: Recipe, words: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """The digest of the chat template, where it is a file of this machine that the recipe mounts, or is written in the
    command itself; None of one in the image or the model, which those tell."""
    value = arguments.option(words, "--chat-template", "--chat_template")
    if not value:
        return None
    if "{" in value or "\n" in value:
        return of_template(value.encode(errors="replace"))
    mounts = []
    for text in used.volumes:
        try:
            mounts.append(volumes.parse(text, environ, project.root))
        except ValueError:
            continue
    for mount in reversed(mounts):
        try:
            rest = PurePosixPath(value).relative_to(mount.target)
            return of_template(regular_file.read(Path(mount.source, rest).resolve(), _LARGEST_TEMPLATE))
        except (ValueError, OSError):
            continue
    return None

"""The subject of a run is the image, the model and the recipe parts that the run belongs to.

The subjects of many images come first, then the subject of one pairing.
Both are read from images.lock and the project's files alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING

from builder.base import files, hub_cache
from builder.base.errors import FileProblemsError, UnsafePathError, UsageError
from builder.definitions import command, container, recipe
from builder.evidence.records import Subject

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.definitions.recipe import Recipe
    from builder.evidence.records import Kind
    from builder.lock.model import ImageName, Lock, Pairing


# The subjects that runs of many images would have now, by facts of recipes that are read once, or remembered.

NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class RequiredRuns:
    """The runs that count beside the last proof: probes by name, and benchmarks where a figure is required."""

    probes: tuple[str, ...] = ()
    has_figures: bool = False


@dataclass(frozen=True)
class ServedFacts:
    """The parts of a subject that a recipe tells: its file, model and revision, the digests of its arguments by the
    kind of run, none where its command cannot be rendered, and that of its template. ``is_whole`` if no other file has
    a part in them. ``requires`` is what the recipe requires."""

    file: str
    model: str | None
    revision: str | None
    arguments: Mapping[Kind, str]
    template: str | None
    is_whole: bool
    requires: RequiredRuns


class PresentSubjects:
    """The subjects that runs of a lock's images would have now. ``read`` gives the facts of a recipe that images.lock
    names, None of one that is gone or cannot be read."""

    def __init__(self, lock: Lock, environ: Mapping[str, str], read: Callable[[str], ServedFacts | None]) -> None:
        self._lock = lock
        self._environ = environ
        self._read = read
        self._facts: dict[str, ServedFacts | None] = {}
        self._subjects: dict[tuple[ImageName, str | None, Kind], Subject] = {}
        self._pairings = {
            (pairing.image, model): pairing
            for model, paired in lock.models.items()
            for pairing in (paired.pairing, *paired.previous)
        }

    def of(self, image: ImageName, model: str | None, kind: Kind) -> Subject:
        """The subject of a run of this kind with the recipe of the pairing."""
        key = (image, model, kind)
        if key not in self._subjects:
            self._subjects[key] = self.with_recipe(image, model, kind, self.recorded(image, model), NOTHING)
        return self._subjects[key]

    def with_recipe(
        self, image: ImageName, model: str | None, kind: Kind, facts: ServedFacts | None, overrides: Mapping[str, str]
    ) -> Subject:
        """The subject of a run of this kind with a recipe of these facts, which were told the ``overrides``."""
        record = self._lock.image(image)
        pairing = self._pairings.get((image, model or ""))
        revision = pairing.revision if pairing else None
        if facts and facts.model == model and facts.revision:
            revision = facts.revision
        if model and revision and not hub_cache.is_commit(revision):
            revision = hub_cache.revision(self._environ, model, revision) or revision
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

    def recorded(self, image: ImageName, model: str | None) -> ServedFacts | None:
        """The facts of the recipe of a pairing; None where there is none, or it cannot be read."""
        pairing = self._pairings.get((image, model or ""))
        if pairing is None or pairing.recipe is None:
            return None
        if pairing.recipe not in self._facts:
            self._facts[pairing.recipe] = self._read(pairing.recipe)
        return self._facts[pairing.recipe]


# The subject that a run of a pairing would have now, from images.lock and the project's files alone. A run records
# the same parts of what it really used (`of_arguments`, `of_template`); `staleness` compares the two.

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
    for used in command.options(words):
        name = used.option.lstrip("-").replace("_", "-")
        wanted = name in _OF_BEHAVIOUR if kind == "prove" else name not in _OF_THE_ADDRESS
        if wanted:
            values = command.values(words, used.option) if used.goes_on else (used.value,)
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
        path = recipe.recorded(project, file)
        return recipe.load_recipe(project, path) if path else None
    except (FileProblemsError, UnsafePathError, UsageError):
        return None


def _facts(project: Project, recipe: Recipe, overrides: Mapping[str, str], environ: Mapping[str, str]) -> ServedFacts:
    requires = RequiredRuns(recipe.requires.probes, bool(recipe.requires.figures))
    try:
        words = command.render_command(recipe, overrides).words
    except (FileProblemsError, UsageError):
        return ServedFacts(recipe.file, recipe.model, recipe.revision, {}, None, is_whole=True, requires=requires)
    behaviour, server = (of_arguments(kind, words, recipe.env) for kind in _DIFFERING)
    digests: dict[Kind, str] = {"prove": behaviour, "bench": server, "probe": server}
    template = _mounted_template(project, recipe, words, environ)
    names_template = command.option(words, "--chat-template", "--chat_template") is not None
    is_whole = not (names_template and recipe.volumes)
    return ServedFacts(recipe.file, recipe.model, recipe.revision, digests, template, is_whole, requires)


def _mounted_template(project: Project, used: Recipe, words: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """The digest of the chat template, where it is a file of this machine that the recipe mounts, or is written in the
    command itself; None of one in the image or the model, which those tell."""
    value = command.option(words, "--chat-template", "--chat_template")
    if not value:
        return None
    if "{" in value or "\n" in value:
        return of_template(value.encode(errors="replace"))
    mounts = []
    for text in used.volumes:
        try:
            mounts.append(container.parse_volume(text, environ, project.root))
        except ValueError:
            continue
    for mount in reversed(mounts):
        try:
            rest = PurePosixPath(value).relative_to(mount.target)
            return of_template(files.read_plain_file(Path(mount.source, rest).resolve(), _LARGEST_TEMPLATE))
        except (ValueError, OSError):
            continue
    return None

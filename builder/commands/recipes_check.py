"""The ``recipes check`` command: finds errors in recipes: in their text, their command, and the names that they use."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder.building import vllm_choices
from builder.definitions import configuration
from builder.definitions.recipes import (
    command,
    finding,
    image_facts,
    known_choices,
    launch_problems,
    option_values,
    recipe,
    recipe_problems,
)
from builder.definitions.recipes.launch_problems import LaunchFindings
from builder.errors import FileProblemsError, Location, LockError, Problem, UsageError
from builder.lock import reading
from builder.lock.model import Lock
from builder.plan import mod_rules
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.definitions.recipes.image_facts import ImageFacts
    from builder.definitions.recipes.recipe import ParsedRecipe, Recipe
    from builder.project import Project


@dataclass(frozen=True)
class CheckedRecipe:
    """A recipe file: the recipe where it can be read, the problems in it, and notes, which keep it from nothing."""

    file: str
    recipe: Recipe | None
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...] = ()


def run(project: Project, paths: Sequence[str]) -> tuple[CheckedRecipe, ...]:
    """Checks every recipe in ``paths``: files, names, and folders with all that is in them; without any, the project's
    own.

    Raises UsageError for a path that is none of these.
    """
    files = dict.fromkeys(file for path in paths or (str(project.recipes),) for file in _files(project, path))
    try:
        lock = reading.of(project)
    except LockError:
        lock = Lock()  # every command that decides by it tells that
    return tuple(_check(project, lock, file) for file in files)


def _files(project: Project, text: str) -> tuple[Path, ...]:
    path = Path(text)
    if path.is_dir():
        return finding.files(path)
    if path.is_file():
        return (path,)
    named = finding.find(project, text)
    if named:
        return (named,)
    if (project.recipes / text).is_dir():
        return finding.files(project.recipes / text)
    if path == project.recipes:
        return ()
    hint = did_you_mean(finding.name_of(text), finding.names(project))
    raise UsageError(f"{text}: no such file, folder or recipe", hint=hint)


def _check(project: Project, lock: Lock, path: Path) -> CheckedRecipe:
    file = project.relative(path)
    try:
        parsed = recipe.read(project, path)
    except FileProblemsError as error:
        return CheckedRecipe(file, None, error.problems)
    except UsageError as error:
        return CheckedRecipe(file, None, (Problem(Location(file), error.message.removeprefix(f"{file}: ")),))
    if parsed.recipe is None:
        return CheckedRecipe(file, None, parsed.problems, parsed.notes)
    launch = _at_launch(project, lock, parsed.recipe)
    problems = {*parsed.problems, *recipe_problems.problems(parsed.recipe), *launch.problems}
    if recipe_problems.is_built_here(project, parsed.recipe):
        problems |= {*recipe_problems.missing_mods(project, parsed.recipe)}  # no build can begin
    every_note = {*notes(project, lock, parsed), *launch.notes}
    return CheckedRecipe(file, parsed.recipe, tuple(sorted(problems)), tuple(sorted(every_note)))


def _at_launch(project: Project, lock: Lock, checked: Recipe) -> LaunchFindings:
    """Finds what is known against a launch of a recipe; nothing where its command cannot be rendered."""
    try:
        rendered = command.render(checked, {})
    except (FileProblemsError, UsageError):
        return LaunchFindings((), ())
    volumes: tuple[str, ...] = ()
    with suppress(FileProblemsError):  # what is wrong in builder.yaml is told by whatever reads it
        volumes = configuration.load(project).container.volumes
    facts = image_facts.of(project, checked)
    findings = launch_problems.find(replace(checked, volumes=(*checked.volumes, *volumes)), rendered, facts)
    choices = vllm_choices.at_hand(project, lock, facts.definitions)
    unknown: tuple[Problem, ...] = ()
    if choices:
        unknown = tuple(known_choices.problems(checked, rendered.words, facts, choices.label, choices.values))
    further = [*option_values.contradictions(checked, rendered.words)]
    if vllm := _pinned_vllm(lock, checked, facts):
        further += launch_problems.streamed_calls(checked, rendered, vllm)
    return LaunchFindings((*findings.problems, *unknown), (*findings.notes, *further))


def _pinned_vllm(lock: Lock, checked: Recipe, facts: ImageFacts) -> str:
    """The version of vLLM in the image of a recipe: that of the number that it is served from, else the one that its
    definition is pinned to. Empty where images.lock has neither."""
    repository = lock.images.get(checked.repository)
    number = checked.number or (repository.current if repository else None)
    image = repository.numbers.get(number) if repository and number else None
    if image and (version := image.versions.get("vllm")):
        return version.version
    for definition in reversed(facts.definitions):
        for pins in lock.pins.get(definition.name, {}).values():
            if pinned := mod_rules.pinned_versions(definition, pins).get("vllm"):
                return pinned
    return ""


def notes(project: Project, lock: Lock, parsed: ParsedRecipe) -> tuple[Problem, ...]:
    """All notes on a recipe that was read, from top to bottom. ``lock`` tells the containers that have a number."""
    further = recipe_problems.notes(project, parsed.recipe, _numbered(lock)) if parsed.recipe else ()
    return tuple(sorted({*parsed.notes, *further}))


def _numbered(lock: Lock) -> frozenset[str]:
    """The repositories that have numbers, and the names that images were adopted from."""
    repositories = {name for name, repository in lock.images.items() if repository.numbers}
    every = (image for repository in lock.images.values() for image in repository.numbers.values())
    adopted = {image.adopted.image.removesuffix(":latest") for image in every if image.adopted}
    return frozenset(repositories | adopted)

"""Problems of a recipe that its schema cannot find: what keeps its command from starting. And notes: what else there is
to know before it is served."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from builder import redaction
from builder.definitions import image
from builder.definitions.mods import known_sources, mod_reading, script_facts
from builder.definitions.recipes import command, json_options, option_places, option_values, volumes
from builder.errors import FileProblemsError, Problem
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from builder.definitions.recipes.recipe import Recipe
    from builder.project import Project

# A container's name is only taken for a mistyped one if it is nearly the same as one that is made here.
_NEARLY = 0.88


def problems(recipe: Recipe) -> tuple[Problem, ...]:
    """Every problem of ``recipe``, with its location in the file."""
    collected = [*command.problems(recipe)]
    if not collected:
        words = command.unchecked_words(recipe)
        collected += (*option_values.name_problems(recipe, words), *option_values.problems(recipe, words))
        with suppress(FileProblemsError):  # a name, which is told above
            collected += json_options.problems(recipe, command.render(recipe, {}))
    if recipe.solo_only and recipe.cluster_only:
        message = "`solo_only` and `cluster_only` exclude each other"
        collected.append(Problem(recipe.location("cluster_only"), message))
    for index, text in enumerate(recipe.volumes):
        if reason := volumes.fault(text):
            collected.append(Problem(recipe.location("volumes", index), f"`{text}`: {reason}"))
    return tuple(sorted(collected))


def require_none(recipes: Iterable[Recipe]) -> None:
    """Raises FileProblemsError with the problems of ``recipes``, if there are any."""
    all_problems = {problem for recipe in recipes for problem in problems(recipe)}
    if all_problems:
        raise FileProblemsError(tuple(all_problems))


def require_buildable(project: Project, recipes: Iterable[Recipe]) -> None:
    """Raises FileProblemsError with the problems of ``recipes`` and the mods that they name and the project lacks."""
    all_problems = {
        problem
        for recipe in recipes
        for problem in (
            *problems(recipe),
            *mod_reading.unknown(project, recipe.mods, partial(recipe.location, "mods")),
        )
    }
    if all_problems:
        raise FileProblemsError(tuple(all_problems))


def notes(project: Project, recipe: Recipe, numbered: Collection[str] = ()) -> tuple[Problem, ...]:
    """Notes on what is to know of ``recipe`` and is no mistake in it; ``numbered`` are containers of which it is known
    that they have a number."""
    has_number = recipe.repository in numbered or recipe.container in numbered
    collected = [
        *(() if has_number else _container(project, recipe)),
        *(() if is_built_here(project, recipe) else missing_mods(project, recipe)),
        *_run_time_mods(project, recipe),
        *_further_commands(recipe),
    ]
    if recipe.ignored_build_args:
        message = f"build_args mean nothing here and are ignored: {' '.join(recipe.ignored_build_args)}"
        collected.append(Problem(recipe.location("build_args"), message))
    collected += [
        Problem(
            recipe.location("env", name), f"{name} looks like a secret; leave it out, and give it by `--env {name}`"
        )
        for name, value in recipe.env.items()
        if value and redaction.looks_secret(name, str(value))
    ]
    return tuple(sorted(collected))


def is_built_here(project: Project, recipe: Recipe) -> bool:
    """True for one of the project's own recipes that a definition of the project builds the image of."""
    with suppress(FileProblemsError):
        is_own = (project.root / recipe.file).is_relative_to(project.recipes)
        return is_own and recipe.number is None and image.of_repository(project, recipe.repository) is not None
    return False


def _further_commands(recipe: Recipe) -> Iterator[Problem]:
    """A note on each command that runs beside the server: a recipe of others may hold any."""
    for text in command.beside_server(recipe):
        where = option_places.of_text(recipe, text.partition(" ")[0])
        yield Problem(where, f"`{text.strip('`')[:80]}` runs as well, beside the server")


def missing_mods(project: Project, recipe: Recipe) -> Iterator[Problem]:
    """Tells each mod of ``recipe`` that the project lacks: it is served without, and not built."""
    existing = mod_reading.names(project)
    for index, name in enumerate(map(mod_reading.name_of, recipe.mods)):
        if name not in existing:
            suggestion = known_sources.remedy(project, name) or did_you_mean(name, existing, code=True, near=_NEARLY)
            message = f"no mod `{name}` in mods/; {suggestion or '`builder mods add` brings it from where it is kept'}"
            yield Problem(recipe.location("mods", index), message)


def unknown_container(project: Project, recipe: Recipe) -> Problem:
    """The problem of a ``recipe`` whose container no image definition makes, for what cannot do without one."""
    existing = image.repositories(project)
    there = f"there are: {', '.join(existing) or 'none'}"
    message = f"container: no image definition makes `{recipe.container}`; {there}"
    return Problem(recipe.location("container"), message)


def _container(project: Project, recipe: Recipe) -> Iterator[Problem]:
    location = recipe.location("container")
    try:
        if image.of_repository(project, recipe.repository):
            return
        existing = image.repositories(project)
    except FileProblemsError as error:
        yield Problem(location, f"which definition makes `{recipe.container}` is not known: {error.problems[0]}")
        return
    suggestion = did_you_mean(recipe.repository, existing, code=True, near=_NEARLY)
    ways = f"an image of that name that the engine has is served; `builder adopt {recipe.container}` numbers it"
    yield Problem(location, f"no image definition makes `{recipe.container}`; {suggestion or ways}")


def _run_time_mods(project: Project, recipe: Recipe) -> Iterator[Problem]:
    """A note on each mod that cannot be baked, with what to use in its place."""
    existing = mod_reading.names(project)
    for index, name in enumerate(map(mod_reading.name_of, recipe.mods)):
        if name not in existing:
            continue
        with suppress(FileProblemsError):
            facts = script_facts.of(mod_reading.load(project, name))
            if facts and facts.instead:
                yield Problem(recipe.location("mods", index), f"mod {name} cannot be baked: {facts.instead}")

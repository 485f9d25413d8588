"""Problems of a recipe that its schema cannot find: a command that cannot start, and names that the project lacks."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from builder.definitions import image
from builder.definitions.mods import mod_reading
from builder.definitions.recipes import command
from builder.errors import FileProblemsError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from builder.definitions.recipes.recipe import Recipe
    from builder.project import Project

# Its value may be the text of a template, which begins with a brace, too.
_TEMPLATE = "--chat-template"


def problems(project: Project, recipe: Recipe) -> tuple[Problem, ...]:
    """Every problem of ``recipe``, with its location in the file."""
    collected = [*command.problems(recipe)]
    collected += () if collected else _broken_json(recipe)
    collected += _unknown_container(project, recipe)
    collected += mod_reading.unknown(mod_reading.names(project), recipe.mods, partial(recipe.location, "mods"))
    if recipe.solo_only and recipe.cluster_only:
        message = "`solo_only` and `cluster_only` exclude each other"
        collected.append(Problem(recipe.location("cluster_only"), message))
    return tuple(sorted(collected))


def require_none(project: Project, recipes: Iterable[Recipe]) -> None:
    """Raises FileProblemsError with the problems of ``recipes``, if there are any."""
    all_problems = {problem for recipe in recipes for problem in problems(project, recipe)}
    if all_problems:
        raise FileProblemsError(tuple(all_problems))


def _broken_json(recipe: Recipe) -> Iterator[Problem]:
    """Options whose value looks like JSON and is not valid: vLLM would report them only after it has started."""
    for option, value in pairwise(command.render(recipe, {}).words):
        if option.startswith("--") and option != _TEMPLATE and value.startswith("{"):
            try:
                json.loads(value)
            except ValueError as error:
                yield Problem(recipe.location("command"), f"the value of {option} is no JSON: {error}")


def _unknown_container(project: Project, recipe: Recipe) -> Iterator[Problem]:
    if image.of_repository(project, recipe.repository) is None:
        repositories = ", ".join(image.repository_of(project, name) for name in image.names(project))
        message = f"container: no image definition makes `{recipe.container}`; there are: {repositories or 'none'}"
        yield Problem(recipe.location("container"), message)

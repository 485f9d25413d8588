"""What is wrong in a recipe that its schema cannot see: a command that nothing can start, and names of what the project
does not have."""

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

# Its value may be the text of a template, which begins with a brace as well (vLLM's `--chat-template`).
_TEMPLATE = "--chat-template"


def problems(project: Project, recipe: Recipe) -> tuple[Problem, ...]:
    """Everything wrong in ``recipe``, each with its place in its file."""
    found = [*command.problems(recipe)]
    found += () if found else _broken_json(recipe)
    found += _unknown_container(project, recipe)
    found += mod_reading.unknown(mod_reading.names(project), recipe.mods, partial(recipe.location, "mods"))
    if recipe.solo_only and recipe.cluster_only:
        said = "`solo_only` and `cluster_only` exclude each other"
        found.append(Problem(recipe.location("cluster_only"), said))
    return tuple(sorted(found))


def require_none(project: Project, recipes: Iterable[Recipe]) -> None:
    """Raises FileProblemsError with everything wrong in ``recipes``."""
    found = {problem for recipe in recipes for problem in problems(project, recipe)}
    if found:
        raise FileProblemsError(tuple(found))


def _broken_json(recipe: Recipe) -> Iterator[Problem]:
    """Options whose value was meant as JSON and is none: vLLM would say so after it has started."""
    for option, value in pairwise(command.render(recipe, {}).words):
        if option.startswith("--") and option != _TEMPLATE and value.startswith("{"):
            try:
                json.loads(value)
            except ValueError as error:
                yield Problem(recipe.location("command"), f"the value of {option} is no JSON: {error}")


def _unknown_container(project: Project, recipe: Recipe) -> Iterator[Problem]:
    if image.of_repository(project, recipe.repository) is None:
        known = ", ".join(image.repository_of(project, name) for name in image.names(project))
        said = f"container: no image definition makes `{recipe.container}`; there are: {known or 'none'}"
        yield Problem(recipe.location("container"), said)

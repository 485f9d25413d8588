"""Export as a recipe of version 1, with which the community's launchers serve one numbered image exactly as it is."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from builder.definitions.recipes import command as commands
from builder.errors import FileProblemsError, UsageError
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from builder.definitions.recipes.command import ServeCommand
    from builder.definitions.recipes.recipe import Recipe

_KEYS = (
    *("recipe_version", "name", "description", "model", "container", "solo_only", "cluster_only"),
    *("mods", "defaults", "env"),
)


def render(recipe: Recipe, command: ServeCommand, image: str, mods: list[str]) -> str:
    """Returns the recipe on ``image``, with only the ``mods`` that are not baked into it, as a launcher would apply
    those a second time, and without build arguments, which could make it build another image.

    Raises UsageError if the revision that the recipe requests cannot be added to its command.
    """
    data: dict[str, Any] = yaml_file.load(recipe.text, recipe.file)
    values = {**data, "recipe_version": "1", "container": image, "mods": mods}
    document = {key: values[key] for key in _KEYS if values.get(key) not in (None, [])}
    text = yaml_file.dump({**document, "command": yaml_file.Block(_command(recipe, command))})
    return f"# Serves from {image} as it is; written by `builder export`.\n{text}"


def _command(recipe: Recipe, command: ServeCommand) -> str:
    """Returns the command's template, with `model_revision` written out, as launchers do not know that key."""
    revision = command.words[-2:]
    if recipe.revision is None or revision != ("--revision", recipe.revision):
        return recipe.command
    before = re.sub(r"[ \t\n\\]+\Z", "", recipe.command)
    quoted = shlex.quote(recipe.revision).replace("{", "{{").replace("}", "}}")
    text = f"{before} \\\n  --revision {quoted}\n"
    if command.is_script or not _is_same(replace(recipe, command=text, revision=None), command):
        raise UsageError(
            f"{recipe.file}: other launchers know no `model_revision`, and it cannot be added to this command",
            hint="write --revision into the command",
        )
    return text


def _is_same(recipe: Recipe, command: ServeCommand) -> bool:
    """False where a comment, a quote or a backslash at the end takes what was added for a part of itself."""
    try:
        return commands.render(recipe, {}).words == command.words
    except FileProblemsError:
        return False

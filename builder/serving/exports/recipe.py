"""Export as a recipe of version 1, with which the community's launchers serve one numbered image exactly as it is."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

from builder.errors import UsageError
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
    import yaml

    data: dict[str, Any] = yaml_file.load(recipe.text, recipe.file)
    values = {**data, "recipe_version": "1", "container": image, "mods": mods}
    document = {key: values[key] for key in _KEYS if values.get(key) not in (None, [])}
    head = yaml.dump(document, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=10_000)
    text = yaml.dump({"command": _Block(_command(recipe, command))}, Dumper=_dumper(), allow_unicode=True, width=10_000)
    return f"# Serves from {image} as it is; written by `builder export`.\n{head}{text}"


def _command(recipe: Recipe, command: ServeCommand) -> str:
    """Returns the command's template, with `model_revision` written out, as launchers do not know that key."""
    revision = command.words[-2:]
    if recipe.revision is None or revision != ("--revision", recipe.revision):
        return recipe.command
    before = re.sub(r"[\s\\]+\Z", "", recipe.command)
    if command.is_script or "#" in before.rpartition("\n")[2]:
        raise UsageError(
            f"{recipe.file}: other launchers know no `model_revision`, and it cannot be added to this command",
            hint="write --revision into the command",
        )
    return f"{before} \\\n  --revision {shlex.quote(recipe.revision).replace('{', '{{').replace('}', '}}')}\n"


class _Block(str):
    """Text that is written as a literal block, line for line."""

    __slots__ = ()


def _dumper() -> Any:
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    Dumper.add_representer(
        _Block, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")
    )
    return Dumper

"""Converts a recipe between versions 1 and 2. Comments at the top of the result list what has no counterpart.

If nothing is listed, both versions render the same command. Every result is read again and compared.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from builder.base import yaml_file
from builder.base.errors import UsageError, require_no_problems
from builder.base.yaml_file import Block
from builder.definitions import command, recipe_v2, shell
from builder.definitions.recipe import Recipe, parse_recipe

if TYPE_CHECKING:
    from builder.definitions.shell import Unit


# Keys with the same meaning in both versions.
_ALIKE = ("model_revision", "draft_model", "build_args", "mods", "volumes", "requires")
# Keys that only this program knows.
_OURS = {"volumes": "mounts nothing", "requires": "requires nothing", "draft_model": "does not download that model"}


def converted(recipe: Recipe, version: int) -> str:
    """The text of ``recipe`` in the other ``version``. Raises UsageError if the recipe already has that version, or if
    the result would start a different server; FileProblemsError if the recipe's command cannot be read."""
    if recipe.version == version:
        raise UsageError(f"{recipe.file} already has version {version}")
    require_no_problems(command.command_problems(recipe))
    data = yaml_file.load_shared(recipe.text, recipe.file)[0]
    document, lost = _to_2(recipe, data) if version == 2 else _to_1(recipe, data)
    document = {key: value for key, value in document.items() if value not in (None, "", [], (), {})}
    head = f"# Version {version} of {_one_line(recipe.file)}, written by `builder recipes convert`.\n"
    missing = [f"# What version {version} cannot express:\n", *map(_comment, lost)] if lost else []
    text = f"{head}{''.join(missing)}{yaml_file.dump(document)}"
    _require_same(recipe, text)
    return text


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)


def _comment(text: str) -> str:
    lines = textwrap.wrap(_one_line(text), 108, break_long_words=False, break_on_hyphens=False)
    return "".join(f"# {'- ' if not number else '  '}{line}\n" for number, line in enumerate(lines))


def _require_same(recipe: Recipe, text: str) -> None:
    """Raises UsageError if the converted text would start a different server on one machine."""
    parsed = parse_recipe(text, recipe.file)
    if parsed.recipe is None:
        message = f"{recipe.file} cannot be converted: the result would be invalid: {parsed.problems[0].message}"
        raise UsageError(message, hint="write the new recipe by hand")
    sizes = {"tensor_parallel": "1"} if "tensor_parallel" in recipe.defaults else {}
    before, after = (_server(command.render_command(each, sizes)) for each in (recipe, parsed.recipe))
    if before != after:
        shows = f"`builder recipes show {shlex.quote(recipe.file)}`"
        hint = f"write the new command by hand; {shows} shows the command that is started"
        raise UsageError(f"{recipe.file} cannot be converted: the result would start a different server", hint=hint)


def _server(rendered: command.ServeCommand) -> tuple[tuple[str, ...], ...]:
    """The words of a server's command and the names that it answers to: servers with equal ones are the same."""
    words = command.without(command.without(rendered.words, command.BACKEND), command.SERVED)
    return words, rendered.served


def _defaults(recipe: Recipe) -> dict[str, Any]:
    return {key: value for key, value in recipe.defaults.items() if key != "model" or recipe.model is None}


# From version 1 to version 2.


def _to_2(recipe: Recipe, data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    units, _ = shell.parse_placeholders(recipe.command)
    rendered = command.render_command(recipe, {})
    lost = [f"only builder knows `{key}`: sparkrun {effect}" for key, effect in _OURS.items() if data.get(key)]
    size = recipe.defaults.get("tensor_parallel")
    if size not in (None, 1) and "tensor_parallel" in shell.keys(units):
        lost.append(f"`tensor_parallel` stays {size} on one machine, where version 1 sets it to 1")
    text = "".join(_written_plain(units, recipe)).strip()
    # Version 2 would serve it by the name of the recipe's model, unless the command cannot take that name.
    parsed = shell.scan(units)
    takes_name = shell.takes_arguments(parsed) and not shell.starts_shell(parsed)
    if recipe.model and takes_name and rendered.served == (rendered.model,) != (recipe.model,):
        text = _with_name(text, {"model", *recipe.defaults}, rendered.served[0])
    expanded = {name: value for name, value in recipe.env.items() if name not in rendered.env}
    kept = "but version 2 keeps it as written"
    lost += (f"`env.{name}`: in version 1 bash expands {value}, {kept}" for name, value in expanded.items())
    document = {
        "recipe_version": "2",
        "name": recipe.name,
        "description": recipe.description,
        "model": data.get("model") or rendered.model,
        "runtime": {"ray": "vllm-ray", "none": "vllm-distributed"}.get(recipe.cluster or "", "vllm"),
        "container": recipe.container,
        "min_nodes": 2 if recipe.cluster_only else None,
        "max_nodes": 1 if recipe.solo_only else None,
        **{key: data.get(key) for key in _ALIKE},
        "defaults": _defaults(recipe),
        "env": {name: rendered.env.get(name, str(value)) for name, value in recipe.env.items()},
        "command": Block(f"{text}\n"),
    }
    return document, lost


def _with_name(template: str, keys: Collection[str], name: str) -> str:
    before = re.sub(r"[\s\\]+\Z", "", template)
    return shell.with_argument(before, keys, f"{command.SERVED} {shlex.quote(name)}")


def _written_plain(units: tuple[Unit, ...], recipe: Recipe) -> Iterator[str]:
    """The template of version 2. A placeholder with a format such as ``{share:.2f}`` becomes the formatted default. A
    placeholder within other braces also becomes its default, because sparkrun before 0.4 would not fill it."""
    open_braces = 0
    for unit in units:
        placeholder = unit.item
        if isinstance(placeholder, str):
            open_braces += (placeholder == "{") - (placeholder == "}")
            yield placeholder
        elif placeholder.spec or placeholder.conversion or open_braces > 0:
            yield shell.text_of(placeholder, recipe.defaults.get(placeholder.key, recipe.model))
        else:
            yield f"{{{placeholder.key}}}"


# From version 2 to version 1.


def _to_1(recipe: Recipe, data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    texts = recipe_v2.texts({**({"model": recipe.model} if recipe.model else {}), **recipe.defaults})
    template, named = recipe.command, command.values(command.unchecked_words(recipe), command.SERVED)
    if recipe.model and named == (recipe.model,) and command.SERVED not in template:
        template = _with_name(template, texts, recipe.model)
    units, _ = shell.parse_plain_placeholders(template, texts)
    used = shell.keys(units)
    defaults = {
        key: texts[key] if "{" in str(value) else value
        for key, value in _defaults(recipe).items()
        if value is not None and key in used
    }
    items = (unit.item for unit in units)
    text = "".join(
        each.replace("{", "{{").replace("}", "}}") if isinstance(each, str) else f"{{{each.key}}}" for each in items
    ).strip()
    document = {
        "recipe_version": "1",
        "name": recipe.name,
        "description": recipe.description,
        "model": data["model"],
        "container": recipe.container,
        "cluster": recipe.cluster,
        "solo_only": recipe.solo_only or None,
        "cluster_only": recipe.cluster_only or None,
        **{key: data.get(key) for key in _ALIKE},
        "model_revision": recipe.revision,
        "draft_model": recipe.draft_model,
        "mods": list(recipe.mods),
        "volumes": list(recipe.volumes),
        "defaults": defaults,
        "env": {name: re.sub(r'([$`"\\])', r"\\\1", str(value)) for name, value in recipe.env.items()},
        "command": Block(f"{text}\n"),
    }
    return document, list(_lost(recipe, data, used))


def _lost(recipe: Recipe, data: Mapping[str, Any], used: tuple[str, ...]) -> Iterator[str]:
    if recipe.min_nodes > 2:
        yield f"`min_nodes` {recipe.min_nodes}: version 1 distinguishes only between one machine and several machines"
    if recipe.max_nodes and recipe.max_nodes > 1:
        yield f"`max_nodes` {recipe.max_nodes}: version 1 cannot limit the number of machines"
    for step in recipe.before:
        yield f"`pre_exec`: version 1 cannot run `{textwrap.shorten(step, 70)}`; put it into the `run.sh` of a mod"
    size = recipe.defaults.get("tensor_parallel")
    if size not in (None, 1) and "tensor_parallel" in used:
        yield f"`tensor_parallel` {size}: version 1 sets it to 1 on one machine"
    for note in recipe_v2.notes(data, recipe.text, recipe.file):
        if "pre_exec" not in note.message and "runs in the container" not in note.message:
            yield f"line {note.location.line}: {note.message}"
    if facts := [key for key in data.get("metadata") or () if key != "description"]:
        yield f"`metadata`: {', '.join(map(str, facts))}"
    valid = recipe_v2.keys()
    yield from (f"`{key}` has no counterpart" for key in data if key not in valid)

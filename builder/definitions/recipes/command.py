"""The serve command of a recipe, rendered: the argument vector that starts the server in its container.

The command is split into words before anything stands in for its placeholders, so a value is one argument whatever it
holds. Only a command that is a real shell script (several commands, pipes, `$…`) goes to bash, with each value quoted
for the place where it stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions.recipes import arguments, filling, placeholders, shell_reading
from builder.definitions.recipes.filling import PlaceholderValues
from builder.definitions.recipes.placeholders import CommandProblem, Piece, Placeholder, Scalar
from builder.errors import FileProblemsError, Problem, UsageError
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.definitions.recipes.recipe import Recipe
    from builder.definitions.recipes.shell import ParsedCommand

# The keys that the community's launchers set from their options, with what else recipes call them, and vLLM's option.
OPTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "port": ("--port", ()),
    "host": ("--host", ()),
    "tensor_parallel": ("--tensor-parallel-size", ("tensor_parallel_size", "tp")),
    "gpu_memory_utilization": ("--gpu-memory-utilization", ("gpu_mem", "gpu_memory")),
    "max_model_len": ("--max-model-len", ()),
}


@dataclass(frozen=True)
class ServeCommand:
    """``argv`` starts the server; ``words`` are those of the command itself, which for a script are what it says rather
    than what its shell makes of it. ``port`` and ``host`` are what it listens on, ``model`` what it loads, and
    ``served`` the names that it answers to; all as far as its words tell."""

    argv: tuple[str, ...]
    env: dict[str, str]
    is_script: bool
    words: tuple[str, ...]
    port: int | None
    host: str | None
    model: str | None
    served: tuple[str, ...]


def render(recipe: Recipe, overrides: Mapping[str, str], extra: Sequence[str] = ()) -> ServeCommand:
    """The command with the recipe's defaults, with ``overrides`` (by key) in place of some, and ``extra`` at its end.

    Raises FileProblemsError for what is wrong in the recipe, each with its place, UsageError for an override or an
    extra argument that the command has no place for.
    """
    pieces, scanned, wrong = _read(recipe)
    if wrong:
        raise FileProblemsError(wrong)
    given, options = _overridden(recipe, pieces, overrides)
    values = PlaceholderValues({**_defaults(recipe), **given}, frozenset(given))
    wrong = _unfit(recipe, pieces, scanned, values)
    if wrong:
        raise FileProblemsError(wrong)
    said = filling.words(scanned, values)
    appended = (*options, *_revision(recipe, said), *extra)
    _require_no_nul(appended)
    words = (*said, *appended)
    return ServeCommand(
        argv=filling.script(scanned, values, appended) if scanned.needs_shell else words,
        env={name: env_text(value) for name, value in recipe.env.items()},
        is_script=scanned.needs_shell,
        words=words,
        port=arguments.port(words),
        host=arguments.option(words, "--host"),
        model=arguments.model(words),
        served=arguments.served(words),
    )


def problems(recipe: Recipe) -> tuple[Problem, ...]:
    """Everything in the recipe's command that keeps it from being rendered with its own defaults."""
    pieces, scanned, wrong = _read(recipe)
    return tuple(sorted((*wrong, *_unfit(recipe, pieces, scanned, PlaceholderValues(_defaults(recipe))))))


def env_text(value: Scalar) -> str:
    """A value of ``env`` as the container gets it: true and false as YAML writes them, nothing for an empty one."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _read(recipe: Recipe) -> tuple[tuple[Piece, ...], ParsedCommand, tuple[Problem, ...]]:
    pieces, misread = placeholders.parse(recipe.command)
    scanned = shell_reading.scan(pieces)
    wrong = tuple(_problem(recipe, one) for one in (*misread, *scanned.wrong))
    if not scanned.commands and not wrong:
        wrong = (Problem(recipe.location("command"), "`command`: there is no command in it"),)
    return pieces, scanned, wrong


def _defaults(recipe: Recipe) -> dict[str, Scalar]:
    return {"model": recipe.model, **recipe.defaults} if recipe.model else dict(recipe.defaults)


def _overridden(
    recipe: Recipe, pieces: tuple[Piece, ...], overrides: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The overrides by the key that the command has for each, and options to append for those that it has none for."""
    used = placeholders.keys(pieces)
    given: dict[str, str] = {}
    options: list[str] = []
    for asked, value in overrides.items():
        canonical = _canonical(asked)
        keys = [key for key in used if _canonical(key) == canonical]
        if keys:
            given |= dict.fromkeys(keys, value)
        elif canonical in OPTIONS:
            # The last one counts: vLLM reads its options with argparse.
            options += [OPTIONS[canonical][0], value]
        else:
            raise UsageError(
                f"{recipe.file}: its command has no {{{asked}}} to set", hint=f"it has: {', '.join(used) or 'none'}"
            )
    return given, tuple(options)


def _canonical(key: str) -> str:
    """One name for a key whichever way a recipe spells it: hyphens or underscores, ``tp`` or ``tensor_parallel``."""
    plain = key.replace("-", "_").lower()
    return next((name for name, (_, others) in OPTIONS.items() if plain in others), plain)


def _revision(recipe: Recipe, words: Sequence[str]) -> tuple[str, ...]:
    """The revision that the recipe asks for, where its command loads the recipe's model and names none itself."""
    if recipe.revision is None or arguments.model(words) != recipe.model or arguments.option(words, "--revision"):
        return ()
    return ("--revision", recipe.revision)


def _unfit(
    recipe: Recipe, pieces: tuple[Piece, ...], scanned: ParsedCommand, values: PlaceholderValues
) -> tuple[Problem, ...]:
    """The placeholders that have no value, or one that cannot stand there."""
    found = [one for piece in pieces if isinstance(piece, Placeholder) for one in _unfit_value(piece, values)]
    return tuple(_problem(recipe, one) for one in found or filling.unquotable(scanned, values))


def _unfit_value(piece: Placeholder, values: PlaceholderValues) -> list[CommandProblem]:
    if piece.key not in values.values:
        said = f"no value for {{{piece.key}}}; there are: {', '.join(sorted(values.values)) or 'none'}"
    else:
        try:
            said = f"the value of {{{piece.key}}} holds a NUL character" if "\0" in values.text(piece) else ""
        except ValueError as error:
            said = f"`{piece.written}`: {error}"
    return [CommandProblem(piece.written, piece.offset, said)] if said else []


def _require_no_nul(texts: Sequence[str]) -> None:
    for text in texts:
        if "\0" in text:
            raise UsageError(f"{text!r}: an argument cannot hold a NUL character")


def _problem(recipe: Recipe, misread: CommandProblem) -> Problem:
    earlier = recipe.command.count(misread.written, 0, misread.offset)
    location = yaml_file.location_within(recipe.text, recipe.file, ("command",), misread.written, earlier)
    return Problem(location, misread.message)

"""The serve command of a recipe, rendered: the argument vector that starts the server in its container.

The command is split into words before its placeholders are substituted, so a value is one argument whatever it
contains. Only a command that is a real shell script (several commands, pipes, `$…`) is run by bash, with each value
quoted for its context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions.reading import env_text
from builder.definitions.recipes import arguments, placeholders, shell_reading, substitution
from builder.definitions.recipes.placeholders import CommandProblem, Piece, Placeholder, Scalar
from builder.definitions.recipes.substitution import PlaceholderValues
from builder.errors import FileProblemsError, Problem, UsageError
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.definitions.recipes.recipe import Recipe
    from builder.definitions.recipes.shell import ParsedCommand

# The keys that the community's launchers set from their options: vLLM's option, and other names in recipes.
OPTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "port": ("--port", ()),
    "host": ("--host", ()),
    "tensor_parallel": ("--tensor-parallel-size", ("tensor_parallel_size", "tp")),
    "gpu_memory_utilization": ("--gpu-memory-utilization", ("gpu_mem", "gpu_memory")),
    "max_model_len": ("--max-model-len", ()),
}


@dataclass(frozen=True)
class ServeCommand:
    """A rendered serve command. ``argv`` starts the server; ``words`` are the words of the command, those of a script
    as written, before its shell expands them. ``port`` and ``host`` are those the server listens on, ``model`` the one
    it loads and ``served`` the names it accepts, as far as the words tell."""

    argv: tuple[str, ...]
    env: dict[str, str]
    is_script: bool
    words: tuple[str, ...]
    port: int | None
    host: str | None
    model: str | None
    served: tuple[str, ...]


def render(recipe: Recipe, overrides: Mapping[str, str], extra: Sequence[str] = ()) -> ServeCommand:
    """Renders the command with the recipe's defaults, the ``overrides`` by key in their place, and ``extra`` appended.

    Raises FileProblemsError with the problems of the recipe and their locations, UsageError for an override or an extra
    argument that the command has no place for.
    """
    pieces, parsed, wrong = _read(recipe)
    if wrong:
        raise FileProblemsError(wrong)
    given, options = _overridden(recipe, pieces, overrides)
    values = PlaceholderValues({**_defaults(recipe), **given}, frozenset(given))
    wrong = _unfit(recipe, pieces, parsed, values)
    if wrong:
        raise FileProblemsError(wrong)
    command_words = substitution.words(parsed, values)
    appended = (*options, *_revision(recipe, command_words), *extra)
    _require_no_nul(appended)
    words = (*command_words, *appended)
    return ServeCommand(
        argv=substitution.script(parsed, values, appended) if parsed.needs_shell else words,
        env={name: env_text(value) for name, value in recipe.env.items()},
        is_script=parsed.needs_shell,
        words=words,
        port=arguments.port(words),
        host=arguments.option(words, "--host"),
        model=arguments.model(words),
        served=arguments.served(words),
    )


def problems(recipe: Recipe) -> tuple[Problem, ...]:
    """The problems that keep the recipe's command from being rendered with its own defaults."""
    pieces, parsed, wrong = _read(recipe)
    return tuple(sorted((*wrong, *_unfit(recipe, pieces, parsed, PlaceholderValues(_defaults(recipe))))))


def _read(recipe: Recipe) -> tuple[tuple[Piece, ...], ParsedCommand, tuple[Problem, ...]]:
    pieces, misread = placeholders.parse(recipe.command)
    parsed = shell_reading.scan(pieces)
    wrong = tuple(_problem(recipe, problem) for problem in (*misread, *parsed.wrong))
    if not parsed.commands and not wrong:
        wrong = (Problem(recipe.location("command"), "`command`: there is no command in it"),)
    return pieces, parsed, wrong


def _defaults(recipe: Recipe) -> dict[str, Scalar]:
    return {"model": recipe.model, **recipe.defaults} if recipe.model else dict(recipe.defaults)


def _overridden(
    recipe: Recipe, pieces: tuple[Piece, ...], overrides: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The overrides by the keys that the command uses for them, and the options to append for the others."""
    used = placeholders.keys(pieces)
    given: dict[str, str] = {}
    options: list[str] = []
    for name, value in overrides.items():
        canonical = _canonical(name)
        keys = [key for key in used if _canonical(key) == canonical]
        if keys:
            given |= dict.fromkeys(keys, value)
        elif canonical in OPTIONS:
            # The last one counts: vLLM parses its options with argparse.
            options += [OPTIONS[canonical][0], value]
        else:
            raise UsageError(
                f"{recipe.file}: its command has no {{{name}}} to set", hint=f"it has: {', '.join(used) or 'none'}"
            )
    return given, tuple(options)


def _canonical(key: str) -> str:
    """The canonical name of a key that recipes spell in several ways: ``-`` or ``_``, ``tp`` or ``tensor_parallel``."""
    plain = key.replace("-", "_").lower()
    return next((name for name, (_, others) in OPTIONS.items() if plain in others), plain)


def _revision(recipe: Recipe, words: Sequence[str]) -> tuple[str, ...]:
    """The option for the recipe's revision, if its command loads the recipe's model and sets no revision itself."""
    if recipe.revision is None or arguments.model(words) != recipe.model or arguments.option(words, "--revision"):
        return ()
    return ("--revision", recipe.revision)


def _unfit(
    recipe: Recipe, pieces: tuple[Piece, ...], parsed: ParsedCommand, values: PlaceholderValues
) -> tuple[Problem, ...]:
    """The placeholders without a value, or with one that cannot be substituted."""
    unfit = [problem for piece in pieces if isinstance(piece, Placeholder) for problem in _unfit_value(piece, values)]
    return tuple(_problem(recipe, problem) for problem in unfit or substitution.unquotable(parsed, values))


def _unfit_value(piece: Placeholder, values: PlaceholderValues) -> list[CommandProblem]:
    if piece.key not in values.values:
        message = f"no value for {{{piece.key}}}; there are: {', '.join(sorted(values.values)) or 'none'}"
    else:
        try:
            message = f"the value of {{{piece.key}}} holds a NUL character" if "\0" in values.text(piece) else ""
        except ValueError as error:
            message = f"`{piece.written}`: {error}"
    return [CommandProblem(piece.written, piece.offset, message)] if message else []


def _require_no_nul(texts: Sequence[str]) -> None:
    for text in texts:
        if "\0" in text:
            raise UsageError(f"{text!r}: an argument cannot hold a NUL character")


def _problem(recipe: Recipe, problem: CommandProblem) -> Problem:
    earlier = recipe.command.count(problem.written, 0, problem.offset)
    location = yaml_file.location_within(recipe.text, recipe.file, ("command",), problem.written, earlier)
    return Problem(location, problem.message)

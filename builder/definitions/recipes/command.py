"""The serve command of a recipe, rendered: the argument vector that starts the server in its container.

The values of the recipe's ``defaults`` are part of the text that bash reads, as in the community's launcher: they may
hold quotes, options and several words. A value from the command line is one argument whatever it contains. Only a
command that is a real shell script (several commands, pipes, `$…`) is run by bash; any other is split into words here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import dropwhile
from typing import TYPE_CHECKING, NamedTuple

from builder.definitions.recipes import (
    arguments,
    command_text,
    environment,
    option_values,
    placeholders,
    shell_reading,
    substitution,
)
from builder.definitions.recipes.arguments import BACKEND, without_backend
from builder.definitions.recipes.placeholders import CommandProblem, Piece, Placeholder, Scalar
from builder.definitions.recipes.substitution import TypedValues
from builder.errors import FileProblemsError, Problem, UsageError
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.definitions.recipes.arguments import Backend
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

# Words that stand before a command, and commands that change the shell alone.
_GRAMMAR = frozenset(
    {"if", "then", "elif", "else", "while", "until", "do", "!", "{", "(", "time", "exec", "fi", "done"}
)
_OF_THE_SHELL = frozenset({"export", "cd", "set", "unset", "umask", "ulimit", "shopt", ":", "true", "}", ")", "wait"})


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
    """Renders the command for one machine, with the recipe's defaults, the ``overrides`` by key in their place, and
    ``extra`` appended. The model is not spread over GPUs unless ``overrides`` says so, whatever the defaults are.

    Raises FileProblemsError with the problems of the recipe and their locations, and for a host, port or model's name
    that is none; UsageError for an override or an extra argument that the command has no place for.
    """
    return _rendered(recipe, _alone(recipe), overrides, without_backend(extra), "mp", ())


def render_member(
    recipe: Recipe, overrides: Mapping[str, str], extra: Sequence[str], backend: Backend, place: Sequence[str] = ()
) -> ServeCommand:
    """Renders the command of one of several machines that ``backend`` joins; the arguments ``place``, which say which
    of them it is, come last. Raises as ``render`` does."""
    kept = tuple(extra) if backend == "ray" else without_backend(extra)
    return _rendered(recipe, _defaults(recipe), overrides, kept, backend, place)


def problems(recipe: Recipe) -> tuple[Problem, ...]:
    """The problems that keep the recipe's command from being rendered with its own defaults."""
    pieces, misread = placeholders.parse(recipe.command)
    _, wrong = _read(recipe, pieces, _defaults(recipe) if recipe.cluster_only else _alone(recipe), {}, "mp")
    return tuple(sorted({*(_problem(recipe, problem) for problem in misread), *wrong}))


def beside_server(recipe: Recipe) -> tuple[str, ...]:
    """The commands that run beside the server, as written: those before and after it, and those in its arguments. What
    only prepares the shell itself is left out; so is everything where the text cannot be read."""
    pieces, _ = placeholders.parse(recipe.command)
    parsed, wrong = _read(recipe, pieces, _alone(recipe), {}, "mp")
    commands = [["".join(token.raw for token in word) for word in words] for words in parsed.commands]
    if wrong or len(commands) < 1:
        return ()
    server = next((each for each in commands if _is_server(each)), commands[0])
    inside = re.findall(r"\$\((?!\().*?\)|`[^`]+`", " ".join(server))
    own = (list(dropwhile(_GRAMMAR.__contains__, each)) for each in commands if each is not server)
    return tuple(dict.fromkeys([" ".join(each) for each in own if each and each[0] not in _OF_THE_SHELL] + inside))


def unchecked_words(recipe: Recipe) -> tuple[str, ...]:
    """The words of the command with the recipe's own defaults, whatever names are in them. Raises FileProblemsError as
    ``render`` does for what cannot be read."""
    return _words(recipe, _alone(recipe), {}, (), "mp", ()).words


def _rendered(
    recipe: Recipe,
    defaults: Mapping[str, Scalar],
    overrides: Mapping[str, str],
    extra: Sequence[str],
    backend: Backend,
    place: Sequence[str],
) -> ServeCommand:
    parsed, values, appended, words = _words(recipe, defaults, overrides, extra, backend, place)
    if unfit := tuple(option_values.name_problems(recipe, words)):
        raise FileProblemsError(unfit)
    variables = environment.read(recipe.env)
    argv = substitution.script(parsed, values, appended) if parsed.needs_shell else words
    return ServeCommand(
        argv=variables.exported_by(argv),
        env=variables.fixed,
        is_script=parsed.needs_shell,
        words=words,
        port=arguments.port(words),
        host=arguments.option(words, "--host"),
        model=arguments.model(words),
        served=arguments.served(words),
    )


class _Words(NamedTuple):
    parsed: ParsedCommand
    values: TypedValues
    appended: tuple[str, ...]
    words: tuple[str, ...]


def _words(
    recipe: Recipe,
    defaults: Mapping[str, Scalar],
    overrides: Mapping[str, str],
    extra: Sequence[str],
    backend: Backend,
    place: Sequence[str],
) -> _Words:
    """The command as bash reads it, the values that were typed, the arguments that are appended, and all its words."""
    pieces, misread = placeholders.parse(recipe.command)
    given, options = _overridden(recipe, pieces, overrides) if not misread else ({}, ())
    parsed, wrong = _read(recipe, pieces, defaults, given, backend)
    if misread or wrong:
        raise FileProblemsError((*(_problem(recipe, problem) for problem in misread), *wrong))
    values = TypedValues(given)
    command_words = substitution.words(parsed, values)
    appended = (*options, *_revision(recipe, command_words), *extra)
    if backend == "ray" and _takes_backend((*command_words, *appended)):
        appended += (BACKEND, backend)
    appended += tuple(place)
    _require_no_nul(appended)
    return _Words(parsed, values, appended, (*command_words, *appended))


def _read(
    recipe: Recipe,
    pieces: tuple[Piece, ...],
    defaults: Mapping[str, Scalar],
    given: Mapping[str, str],
    backend: Backend,
) -> tuple[ParsedCommand, tuple[Problem, ...]]:
    """The command as bash reads it with the values of the recipe in it, and its problems."""
    own = {key: value for key, value in defaults.items() if key not in given}
    unfit = _unfit(pieces, {**own, **given})
    filled = command_text.without_empty_lines(placeholders.filled(pieces, own))
    if backend == "mp":
        filled = command_text.without_empty_lines(command_text.without_backend(filled))
    parsed = shell_reading.scan(filled)
    wrong = (*unfit, *parsed.wrong)
    if not wrong:
        wrong = tuple(substitution.unquotable(parsed, TypedValues(given)))
    if not wrong and not parsed.commands:
        return parsed, (Problem(recipe.location("command"), "`command`: there is no command in it"),)
    return parsed, tuple(_problem(recipe, problem) for problem in wrong)


def _defaults(recipe: Recipe) -> dict[str, Scalar]:
    return {"model": recipe.model, **recipe.defaults} if recipe.model else dict(recipe.defaults)


def _alone(recipe: Recipe) -> dict[str, Scalar]:
    """The defaults for one machine: of all keys, the community's launcher sets this one unless it is given."""
    used = "tensor_parallel" in placeholders.keys(placeholders.parse(recipe.command)[0])
    return {**_defaults(recipe), **({"tensor_parallel": 1} if used else {})}


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


def _takes_backend(words: Sequence[str]) -> bool:
    """True for a vLLM server that is not told yet what joins the machines."""
    return _is_server(words) and arguments.option(words, BACKEND) is None


def _is_server(words: Sequence[str]) -> bool:
    return "vllm serve" in " ".join(words) or any("vllm.entrypoints" in word for word in words)


def _unfit(pieces: tuple[Piece, ...], values: Mapping[str, Scalar]) -> tuple[CommandProblem, ...]:
    """The placeholders without a value, or with one that cannot be substituted."""
    problems = (_unfit_value(piece, values) for piece in pieces if isinstance(piece, Placeholder))
    return tuple(problem for problem in problems if problem)


def _unfit_value(piece: Placeholder, values: Mapping[str, Scalar]) -> CommandProblem | None:
    if piece.key not in values:
        message = f"no value for {{{piece.key}}}; there are: {', '.join(sorted(values)) or 'none'}"
    else:
        try:
            text = placeholders.text_of(piece, values[piece.key])
            message = f"the value of {{{piece.key}}} holds a NUL character" if "\0" in text else ""
        except ValueError as error:
            message = f"`{piece.written}`: {error}"
    return CommandProblem(piece.written, piece.offset, message) if message else None


def _require_no_nul(texts: Sequence[str]) -> None:
    for text in texts:
        if "\0" in text:
            raise UsageError(f"{text!r}: an argument cannot hold a NUL character")


def _problem(recipe: Recipe, problem: CommandProblem) -> Problem:
    earlier = recipe.command.count(problem.written, 0, problem.offset)
    location = yaml_file.location_within(recipe.text, recipe.file, ("command",), problem.written, earlier)
    return Problem(location, problem.message)

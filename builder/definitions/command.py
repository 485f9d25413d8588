"""Renders the serve command of a recipe into the argument vector that starts the server.

Each value from the command line is one argument. bash runs only commands that are shell scripts; this program splits
any other command into words.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import dropwhile, islice, pairwise, takewhile
from typing import TYPE_CHECKING, Any, Literal

from builder.base import yaml_file
from builder.base.errors import Location, Problem, UsageError, require_no_problems
from builder.base.values import dataclass, replace
from builder.definitions import recipe_v2, shell

if TYPE_CHECKING:
    from builder.definitions.recipe import Recipe
    from builder.definitions.shell import ParsedCommand, Placeholder, Scalar, Unit


# The backends that connect several machines, by the names in vLLM's option: its own processes, or Ray.
Backend = Literal["mp", "ray"]
BACKEND = "--distributed-executor-backend"
SERVED = recipe_v2.SERVED

# The options whose product is the number of GPUs: https://docs.vllm.ai/en/stable/serving/parallelism_scaling.html
_COUNTS = {"tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size"}

# The default port of `vllm serve`: https://docs.vllm.ai/en/stable/cli/serve.html
VLLM_PORT = 8000
LOOPBACK = "127.0.0.1"


def option(words: Sequence[str], *names: str) -> str | None:
    """The value of an option with one of ``names`` in ``words``; the last one if it is repeated."""
    spelled = {*map(_spelled, names)}
    return next((used.value for used in reversed([*options(words)]) if _spelled(used.option) in spelled), None)


def _spelled(option: str) -> str:
    """The option as vLLM reads it: ``--max_model_len`` is ``--max-model-len``."""
    return option.replace("_", "-") if option.startswith("--") else option


def values(words: Sequence[str], name: str) -> tuple[str, ...]:
    """The values of an option with several values: everything up to the next option."""
    result: tuple[str, ...] = ()
    for at, word in enumerate(words):
        option, sign, value = word.partition("=")
        if _spelled(option) == _spelled(name):
            following = takewhile(lambda each: not each.startswith("-"), words[at + 1 :])
            result = (value,) if sign else tuple(following)
    return result


def model(words: Sequence[str]) -> str | None:
    """The model that `vllm serve MODEL` or `--model` names."""
    for word, following in pairwise(words):
        if word == "serve" and not following.startswith("-"):
            return following
    return option(words, "--model")


def served(words: Sequence[str]) -> tuple[str, ...]:
    """The names that the server answers to; none if only the shell knows the model, as in ``$(cat model)``."""
    loaded = model(words)
    return values(words, SERVED) or ((loaded,) if loaded and not loaded.startswith(("$(", "`")) else ())


def port(words: Sequence[str]) -> int | None:
    """The port that the server listens on; None if only the shell knows it."""
    text = option(words, "--port")
    return VLLM_PORT if text is None else whole_number(text)


def whole_number(text: str) -> int | None:
    """The whole number in the text; None for other text, and for more than 18 digits."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def reached_at(host: str | None) -> str:
    """The address of a server that listens on ``host``, for its own machine."""
    return host if host not in {None, "", "0.0.0.0", "::"} else LOOPBACK  # noqa: S104


def parallelism(words: Sequence[str]) -> dict[str, int]:
    """The parallel sizes in the words, by their short names ``tp``, ``pp`` and ``dp``; without sizes that only the
    shell knows."""
    names = {short: (f"-{short}", f"--{name}") for short, name in _COUNTS.items()}
    texts = {short: option(words, *spellings) or "" for short, spellings in names.items()}
    return {short: size for short, text in texts.items() if (size := whole_number(text)) is not None}


def without(words: Sequence[str], name: str) -> tuple[str, ...]:
    """``words`` without the option and its value."""
    kept: list[str] = []
    waiting = iter(words)
    for word in waiting:
        option, sign, _ = word.partition("=")
        if _spelled(option) != _spelled(name):
            kept.append(word)
        elif not sign:
            next(waiting, None)
    return tuple(kept)


# The locations of options and values in a recipe: in its command, or in the default with the value.

_PLACEHOLDER = re.compile(r"(?<!\{)\{([A-Za-z_][A-Za-z0-9_-]*)[^{}]*\}(?!\})")
_SERVER = re.compile(r"\bvllm\s+serve\b|\bvllm\.entrypoints\b")
_NEXT_OPTION = re.compile(r"\s--?[A-Za-z]")


@dataclass(frozen=True)
class UsedOption:
    """An option in a serve command, its ``value`` if it has one, and its ``occurrence`` among options with the
    same spelling, from 0."""

    option: str
    value: str | None
    occurrence: int

    @property
    def json_object(self) -> dict[str, Any]:
        with suppress(ValueError, RecursionError):
            if self.value and self.value.startswith("{"):
                value: dict[str, Any] = json.loads(self.value)
                return value
        return {}


def options(words: Sequence[str]) -> Iterator[UsedOption]:
    """The options in ``words``, in order: ``--name value``, ``--name=value``, ``-tp value``, ``--flag``."""
    counts: dict[str, int] = {}
    for word, following in zip(words, (*words, None)[1:], strict=True):
        if not _is_option(word):
            continue
        option, sign, value = word.partition("=")
        occurrence = counts.get(option, 0)
        counts[option] = occurrence + 1
        has_value = not sign and following is not None and not _is_option(following)
        yield UsedOption(option, value if sign else following if has_value else None, occurrence)


def _is_option(word: str) -> bool:
    return bool(re.match(r"--?[A-Za-z]", word))


def of_option(recipe: Recipe, used: UsedOption) -> Location:
    """The location of the option in the command, or of the default that contains it."""
    if (offset := _offset(recipe, used)) is not None:
        return _in_command(recipe, used.option, offset)
    key = next((key for key, value in recipe.defaults.items() if used.option in str(value)), None)
    return recipe.location("defaults", key) if key else recipe.location("command")


def _in_command(recipe: Recipe, written: str, offset: int) -> Location:
    earlier = recipe.command.count(written, 0, offset)
    return yaml_file.location_within(recipe.text, recipe.file, ("command",), written, earlier)


def of_value(recipe: Recipe, used: UsedOption, at: int = 0) -> Location:
    """The location of the character ``at`` of the option's value. If the file spells the value differently: the
    location of its default, or of the option."""
    start = of_option(recipe, used)
    if (offset := _offset(recipe, used)) is None:
        return start
    end = _NEXT_OPTION.search(recipe.command, offset + len(used.option))
    written = recipe.command[offset + len(used.option) : end.start() if end else None]
    keys = (key for key in _PLACEHOLDER.findall(written) if recipe.defaults.get(key) is not None)
    if key := next(keys, None):
        start = recipe.location("defaults", key)
    return _within(recipe.text, start, used.value or "", at) or start


def of_text(recipe: Recipe, written: str) -> Location:
    """The location of a word of the command. If the command does not contain it: the location of its default, or of the
    command."""
    if written in recipe.command:
        return _in_command(recipe, written, 0)
    key = next((key for key, value in recipe.defaults.items() if value == written), None)
    locations = yaml_file.locations(recipe.text, recipe.file)
    # A folder in `model:` is the default of {model}.
    default = locations.get(("defaults", key)) or locations.get((key,)) if key else None
    return default or recipe.location("command")


def _offset(recipe: Recipe, used: UsedOption) -> int | None:
    pattern = re.compile(rf"(?<![\w-]){re.escape(used.option)}(?![\w-])")
    begins = [match.start() for match in _SERVER.finditer(recipe.command)]
    # The words before it belong to other programs.
    offsets = [match.start() for match in pattern.finditer(recipe.command, begins[0] if len(begins) == 1 else 0)]
    return offsets[used.occurrence] if used.occurrence < len(offsets) else None


def _within(text: str, start: Location, value: str, at: int) -> Location | None:
    """The location of the character ``at`` of ``value`` after ``start``. The file may contain the value with doubled
    braces. None if the file does not contain it."""

    def spelled(part: str, doubled: str) -> str:
        lines = (re.sub(r"\\([{}])", doubled, re.escape(line)) for line in part.split("\n"))
        return r"\n[ \t]*".join(lines)

    index = sum(map(len, text.splitlines(keepends=True)[: start.line - 1])) + start.column - 1
    patterns = (f"({spelled(value[:at], each)}){spelled(value[at:], each)}" for each in (r"\\\1", r"\\\1\\\1"))
    matches = (re.compile(pattern).search(text, index) for pattern in patterns if value)
    match = min(filter(None, matches), key=lambda each: (each.start(), -each.end()), default=None)
    # A single character far away is not the value.
    if match is None or (len(value) < 2 and text.count("\n", index, match.start()) > 1):
        return None
    end = match.end(1)
    return Location(start.file, text.count("\n", 0, end) + 1, end - text.rfind("\n", 0, end))


# Values that vLLM refuses when it parses them, and contradictory options.

# Options of vLLM that take a number: https://docs.vllm.ai/en/stable/cli/serve.html. Some also take `8k` or `auto`.
_SHARE = "gpu-memory-utilization"
# The smallest accepted value; with -1, vLLM chooses.
_LEAST = {
    **dict.fromkeys((*_COUNTS.values(), "nnodes", "max-num-seqs", "max-num-batched-tokens", "block-size"), 1),
    "kv-cache-memory-bytes": 1,
    **dict.fromkeys(("node-rank", "swap-space", "cpu-offload-gb"), 0),
    **dict.fromkeys(("max-model-len", "max-logprobs"), -1),
}
# A whole number as Python reads it, or as vLLM has it besides: `8k`, `auto`. Some options also take parts of one.
_AMOUNT = re.compile(r"auto|-?[0-9][0-9_]*(\.[0-9]+)?([kKmMgGtT]([iI]?[bB])?)?")
_FRACTIONS = frozenset({"swap-space", "cpu-offload-gb"})
_HOST = re.compile(r"(?!-)[A-Za-z0-9._:%-]*")
_NAMES = frozenset({"served-model-name", "model", "revision", "tokenizer"})
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# More problems would repeat the same cause, and each costs a search through the text.
_MOST_TOLD = 50
# Options that may be repeated.
_COLLECTED = frozenset({"middleware"})


def name_of(option: str) -> str:
    """The name of an option without its dashes: ``-tp`` and ``--tensor_parallel_size`` are ``tensor-parallel-size``."""
    name = option.lstrip("-").replace("_", "-")
    return _COUNTS.get(name, name)


def number_problems(recipe: Recipe, words: Sequence[str]) -> Iterator[Problem]:
    """The values that must be numbers and are not, and numbers out of range."""
    return islice(_value_problems(recipe, words, _number_fault), _MOST_TOLD)


def name_problems(recipe: Recipe, words: Sequence[str]) -> Iterator[Problem]:
    """The misspelled options, and the invalid hosts, ports and names of models. These values go into addresses, labels
    and files of other programs. Values that only a shell knows are not checked."""
    yield from islice(_spelling_problems(recipe, words), _MOST_TOLD)
    yield from islice(_value_problems(recipe, words, _name_fault), _MOST_TOLD)
    if message := _name_fault("model", model(words) or ""):
        yield Problem(recipe.location("command"), f"the model {model(words)!r}: {message}")


def _spelling_problems(recipe: Recipe, words: Sequence[str]) -> Iterator[Problem]:
    """The options whose names contain other characters than ASCII, such as an invisible one or a typographic hyphen:
    such an option looks like one of vLLM, but vLLM does not know it."""
    names = (word.partition("=")[0] for word in words)
    for name in (name for name in names if not name.isascii()):
        # One dash may stand for two hyphens.
        plain = re.sub(r"\A-(?=[A-Za-z][\w-]{2})", "--", "".join(map(_plain_letter, name)))
        if _is_option(plain) and not re.search(r"\s", plain):
            letters = ", ".join(dict.fromkeys(f"U+{ord(letter):04X}" for letter in name if not letter.isascii()))
            message = f"the option `{name}` contains {letters}, which no option of vLLM has"
            advice = f"write `{plain}`" if plain.isascii() else "type the option again"
            yield Problem(of_text(recipe, name), f"{message}: {advice}")


def _plain_letter(letter: str) -> str:
    """The letter as a keyboard has it: a hyphen for any dash, and nothing for an invisible character."""
    import unicodedata

    kind = "Pd" if letter == "\N{MINUS SIGN}" else unicodedata.category(letter)
    return {"Pd": "-", "Cf": "", "Mn": ""}.get(kind, letter)


def _value_problems(recipe: Recipe, words: Sequence[str], fault: Callable[[str, str], str]) -> Iterator[Problem]:
    for used in (used for used in options(words) if used.value is not None):
        name = name_of(used.option)
        every = (used.value or "", *(values(words, used.option) if name in _NAMES else ()))
        if message := next(filter(None, (fault(name, value) for value in every)), ""):
            yield Problem(of_value(recipe, used), f"{used.option} {used.value}: {message}")


def _name_fault(name: str, value: str) -> str:
    if name in _NAMES:
        return "a name cannot contain a line break or a control character" if _CONTROL.search(value) else ""
    if re.search(r"[$`]", value):
        return ""
    if name == "host" and not _HOST.fullmatch(value):
        return "expected a host name or an address, such as 0.0.0.0"
    is_port = re.fullmatch("[0-9]{1,5}", value) and 1 <= int(value) <= 65535
    return "expected a port: 1 to 65535" if name in {"port", "master-port"} and not is_port else ""


def _number_fault(name: str, value: str) -> str:
    if name not in {*_LEAST, "seed", _SHARE} or re.search(r"[$`]", value):
        return ""
    if re.fullmatch(r"\d+(,\d+)+", value):
        return f"a number cannot contain a comma; write {value.replace(',', '.' if name == _SHARE else '')}"
    if name in _COUNTS.values() and not re.fullmatch(r"-?[0-9]+", value):
        return "expected a whole number"
    if name in _LEAST and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value):
        if len(value) > 18:
            return "expected a number of at most 18 characters"
        least = 1 if name == "max-model-len" and float(value) == 0 else _LEAST[name]
        return "" if float(value) >= least else f"expected {least} or more"
    if name != _SHARE:
        is_number = _AMOUNT.fullmatch(value) or (name in _FRACTIONS and re.fullmatch(r"[0-9.]+(e[0-9]+)?", value))
        return "" if is_number else "expected a number"
    with suppress(ValueError):
        if 0 < float(value) <= 1:
            return ""
    return "expected a share of the memory: more than 0, and at most 1, such as 0.85"


def contradictions(recipe: Recipe, words: Sequence[str]) -> Iterator[Problem]:
    """A note for each option that is repeated with another value: vLLM uses the last one."""
    return islice(_contradictions(recipe, words), _MOST_TOLD)


def _contradictions(recipe: Recipe, words: Sequence[str]) -> Iterator[Problem]:
    if words.count("serve") > 1:
        return  # a script with several ways to serve
    latest: dict[str, tuple[str, str]] = {}
    for used in options(words):
        name = name_of(used.option)
        switch = name.removeprefix("no-") if used.value is None else name
        value, written = ("off" if name.startswith("no-") else "on"), used.option
        if used.value is not None:
            value = used.value
            written += f" {value if len(value) <= 40 else f'{value[:39]}…'}"
        earlier, earlier_written = latest.get(switch, (value, ""))
        if name not in _COLLECTED and earlier != value:
            message = f"`{written}` CONTRADICTS `{earlier_written}` before it; vLLM uses the last one"
            yield Problem(of_option(recipe, used), message)
        latest[switch] = (value, written)


# The environment variables of a recipe. The community's launcher writes each into a script, in double quotes: ``\"`` is
# a quote, and ``$HOME`` is expanded in the container. Here, only variables that bash must expand become part of a
# script. A quote without a backslash is kept; in the launcher, it would end the text and break JSON.

_ESCAPED = re.compile(r'\\(?:([$`"\\])|\n)')
_EXPANSION = re.compile(r"(?<!\\)(?:\\\\)*(?:`|\$(?:[A-Za-z0-9_@*#?$!({-]))")
_BARE_QUOTE = re.compile(r'((?<!\\)(?:\\\\)*)"')
_LAST_BACKSLASH = re.compile(r"(?<!\\)((?:\\\\)*)\\\Z")


def _environment(recipe: Recipe, backend: Backend | None) -> tuple[dict[str, str], str]:
    """The variables with fixed text, and the lines of a script that export the variables which bash expands. Version 2
    has no such lines. Values become text as in Python, such as ``True``; null becomes an empty text."""
    texts = {name: "" if value is None else str(value) for name, value in recipe.env.items()}
    if recipe.version == 2:
        return {**recipe_v2.CLUSTER_ENVIRONMENT.get(backend or "", {}), **texts}, ""
    expanded = {name: text for name, text in texts.items() if _EXPANSION.search(text)}
    fixed = {name: _ESCAPED.sub(r"\1", text) for name, text in texts.items() if name not in expanded}
    for name, text in expanded.items():
        # The text must not end the double quotes around it. Quotes in a command substitution are allowed.
        if not re.search(r"`|\$\(", text):
            expanded[name] = _LAST_BACKSLASH.sub(r"\1\\\\", _BARE_QUOTE.sub(r"\1\"", text))
    return fixed, "".join(f'export {name}="{text}"\n' for name, text in expanded.items())


# First the number of the commands, then the commands, then the words of the server.
_AFTER_STEPS = 'n=$1; shift; while ((n-- > 0)); do bash -c "$1" || exit; shift; done; exec "$@"'

# The same server by another name.
_MODULE = ("-m", "vllm.entrypoints.openai.api_server")

# The keys that the community's launchers set from their own options, with the options of vLLM.
_OPTIONS = {
    "port": "--port",
    "host": "--host",
    **dict.fromkeys(("tensor_parallel", "tensor_parallel_size", "tp"), "--tensor-parallel-size"),
    **dict.fromkeys(("gpu_memory_utilization", "gpu_mem", "gpu_memory"), "--gpu-memory-utilization"),
    "max_model_len": "--max-model-len",
}

# run-recipe.py of spark-vllm-docker removes this from a command for one machine: the option that connects machines,
# with its value on the same line or on the next. A remaining empty line or single backslash would end the command too
# early.
_JOINS_MACHINES = re.compile(
    rf"(?<![\w-]){BACKEND}(?:=|(?:[ \t]|\\?\n)+)"
    r"""(?:'[^'\n]*'|"[^"\n]*"|[^\s'"\\;&|()<>#-][^\s'"\\;&|()<>]*)"""
)
_EMPTY_LINE = re.compile(r"^[ \t\r]*+(?:\\[ \t\r]*+)?\n", re.MULTILINE)

# Words before a command, and commands that only change the shell.
_GRAMMAR = frozenset(
    {"if", "then", "elif", "else", "while", "until", "do", "!", "{", "(", "time", "exec", "fi", "done"}
)
_OF_THE_SHELL = frozenset(
    {"export", "cd", "set", "unset", "umask", "ulimit", "shopt", ":", "true", "}", ")", "wait", "esac"}
)
# A variable that is set, and the items of one that is a list; the head of a loop or a choice.
_SETS = re.compile(r"[A-Za-z_]\w*\+?=")
_HEADS = frozenset({"for", "case", "select"})


@dataclass(frozen=True)
class ServeCommand:
    """A rendered serve command. ``argv`` starts the server. ``words`` are the words of the command, before the shell
    expands them: they contain ``port``, ``host``, the ``model`` to load, and its served names. The commands ``before``
    run in the container before each start."""

    argv: tuple[str, ...]
    env: dict[str, str]
    is_script: bool
    words: tuple[str, ...]
    port: int | None
    host: str | None
    model: str | None
    served: tuple[str, ...]
    before: tuple[str, ...] = ()


def render_command(
    recipe: Recipe,
    overrides: Mapping[str, str],
    extra: Sequence[str] = (),
    backend: Backend | None = None,
    place: Sequence[str] = (),
) -> ServeCommand:
    """Renders the command with the recipe's defaults, replaced by the ``overrides`` by key, and appends ``extra``.

    Without a ``backend``, the command is for one machine, and for one GPU unless ``overrides`` sets a parallel size.
    With a ``backend``, the command is for one of several machines; the arguments ``place`` identify the machine and
    come last.

    Raises FileProblemsError with the problems of the recipe and their locations, also for an invalid host, port or
    model name; UsageError if the command cannot accept an override or an extra argument.
    """
    parsed, given, appended, words = _completed(recipe, overrides, extra, backend, place)
    require_no_problems(name_problems(recipe, words))
    fixed, exports = _environment(recipe, backend)
    within = shell.within_shell(parsed, given)
    if parsed.needs_shell:
        argv = shell.script(parsed, given, appended)
    elif within:
        argv = shell.script_within(shell.words(parsed, given), within, appended)
    else:
        argv = (*shell.words(parsed, given), *appended)
    if exports and argv[:2] == ("bash", "-c"):
        argv = (*argv[:2], f"{exports}{argv[2]}", *argv[3:])
    elif exports:
        argv = ("bash", "-c", f'{exports}exec "$@"', "bash", *argv)
    replacing = {key: str(value) for key, value in _values(recipe, backend).items()}
    replacing |= {key: shlex.quote(text) for key, text in given.items()}
    return ServeCommand(
        argv=argv,
        env=fixed,
        is_script=parsed.needs_shell or within is not None,
        words=words,
        port=port(words),
        host=option(words, "--host"),
        model=model(words),
        served=served(words),
        before=tuple(recipe_v2.filled(step, replacing, shell.SPANS) for step in recipe.before),
    )


def after_steps(before: Sequence[str], argv: tuple[str, ...]) -> tuple[str, ...]:
    """The argument vector that runs the commands ``before`` in order, and then ``argv``. It stops at the first
    failure."""
    return ("bash", "-c", _AFTER_STEPS, "bash", str(len(before)), *before, *argv) if before else argv


def command_problems(recipe: Recipe) -> tuple[Problem, ...]:
    """The problems that prevent rendering the recipe's command with its own defaults."""
    return tuple(sorted({*_parsed(recipe, {}, "mp" if recipe.cluster_only else None)[3]}))


def beside_server(recipe: Recipe) -> tuple[str, ...]:
    """The commands that run beside the server, as written: before it, after it, and in its arguments. Commands that
    only prepare the shell are left out. Empty if the text cannot be parsed."""
    parsed, _, _, wrong = _parsed(recipe, {}, None)
    commands = [["".join(token.raw for token in word) for word in words] for words in parsed.commands]
    if wrong or not commands:
        return ()
    server = next((each for each in commands if _is_server(each)), commands[0])
    inside = re.findall(r"\$\((?!\().*?\)|`[^`]+`", " ".join(server))
    own = (list(dropwhile(_GRAMMAR.__contains__, each)) for each in commands if each is not server)
    return tuple(dict.fromkeys([" ".join(each) for each in own if _runs_a_program(each)] + inside))


def _runs_a_program(words: Sequence[str]) -> bool:
    if not words or words[0] in _OF_THE_SHELL:
        return False
    only_prepares = words[0] in _HEADS or words[0].startswith("-") or all(map(_SETS.match, words))
    return not only_prepares or bool(re.search(r"\$\(|`", " ".join(words)))


def unchecked_words(recipe: Recipe) -> tuple[str, ...]:
    """The words of the command with the recipe's own defaults; names are not checked. Raises FileProblemsError like
    `render_command` if the command cannot be parsed."""
    return _completed(recipe, {})[3]


def server_arguments(
    recipe: Recipe, overrides: Mapping[str, str] | None = None, extra: Sequence[str] = ()
) -> tuple[tuple[str, ...], bool]:
    """The arguments of `vllm` after the program, with the recipe's own defaults; empty if the command runs another
    program or several servers. Words that only the shell knows are left out, with their options; the second value is
    True if there are no such words. Raises the errors of `render_command`."""
    parsed, given, appended, _ = _completed(recipe, overrides or {}, extra)
    servers: list[tuple[list[str], bool]] = []
    for command in parsed.commands:
        kept: list[str] = []
        is_certain = True
        for word in command:
            if any(token.expands for token in word):
                is_certain = False
                if kept and _is_option(kept[-1]) and "=" not in kept[-1]:
                    del kept[-1]
            else:
                kept += shell.words(replace(parsed, commands=((word,),)), given)
        for at, (program, following) in enumerate(pairwise(kept), 1):
            if (program.rpartition("/")[2], following) == ("vllm", "serve") or (program, following) == _MODULE:
                servers.append((["serve", *kept[at + 1 :], *appended], is_certain))
                break
    return (tuple(servers[0][0]), servers[0][1]) if len(servers) == 1 else ((), False)


def _completed(
    recipe: Recipe,
    overrides: Mapping[str, str],
    extra: Sequence[str] = (),
    backend: Backend | None = None,
    place: Sequence[str] = (),
) -> tuple[ParsedCommand, dict[str, str], tuple[str, ...], tuple[str, ...]]:
    """The parsed command, the typed values for its keys, the arguments to append, and all words together."""
    parsed, given, options, wrong = _parsed(recipe, overrides, backend)
    require_no_problems(wrong)
    within = shell.within_shell(parsed, given)
    script = within[1] if within else parsed
    words = _with_model_first(
        shell.words(shell.server_alone(script), given), {**_values(recipe, backend), **given}.get("model")
    )
    if recipe.revision is not None and model(words) == recipe.model and not option(words, "--revision"):
        options += ["--revision", recipe.revision]
    is_closed = within and parsed.needs_shell
    named = recipe.model if recipe.version == 2 and shell.takes_arguments(script) and not is_closed else None
    if named and model(words) not in {None, named} and not values(words, SERVED):
        options += [SERVED, named]  # as in sparkrun, weights in a folder have the name of the recipe's model
    options += extra if backend == "ray" else without(extra, BACKEND)
    if backend == "ray" and _is_server((*words, *options)) and option((*words, *options), BACKEND) is None:
        options += [BACKEND, backend]
    options += place
    if is_closed and options:
        message = f"{recipe.file}: its command starts a shell within a shell, so builder cannot add further arguments"
        raise UsageError(message, hint="write the command without `bash -c`: builder starts a shell if necessary")
    if bad := [text for text in options if "\0" in text]:
        raise UsageError(f"{bad[0]!r}: an argument cannot contain a NUL character")
    return parsed, given, tuple(options), (*words, *options)


def _with_model_first(words: tuple[str, ...], name: Scalar) -> tuple[str, ...]:
    """``words`` with the model ``name`` right after `serve`: vLLM also takes it after options, where it looks like the
    value of one."""
    if "serve" not in words or model(words) is not None:
        return words
    begin = words.index("serve") + 1
    if name not in words[begin:]:
        return words
    at = words.index(str(name), begin)
    return (*words[:begin], words[at], *words[begin:at], *words[at + 1 :])


def _values(recipe: Recipe, backend: Backend | None, used: Sequence[str] = ()) -> dict[str, Scalar]:
    values = {**({"model": recipe.model} if recipe.model else {}), **recipe.defaults}
    if recipe.version == 2:
        return dict(recipe_v2.texts(values))
    if backend is None and "tensor_parallel" in used:
        values["tensor_parallel"] = 1  # of all keys, the community's launcher sets this one for one machine
    return values


def _parsed(
    recipe: Recipe, overrides: Mapping[str, str], backend: Backend | None
) -> tuple[ParsedCommand, dict[str, str], list[str], tuple[Problem, ...]]:
    """The command with the recipe's values, as bash reads it; the ``overrides`` of its placeholders; the other
    overrides as options; and the problems."""
    if recipe.version == 1:
        units, misread = shell.parse_placeholders(recipe.command)
    else:
        units, misread = shell.parse_plain_placeholders(recipe.command, {*_values(recipe, None), *overrides})
    used = shell.keys(units)
    given, options = ({}, []) if misread else _overridden(recipe, used, overrides)
    own = {key: value for key, value in _values(recipe, backend, used).items() if key not in given}
    filled = [*islice(shell.filled(units, own), shell.LONGEST_ARGUMENT + 1)]
    if len(filled) > shell.LONGEST_ARGUMENT:
        message = f"`command`: with its values filled in, it is longer than {shell.LONGEST_ARGUMENT >> 10} KiB"
        return shell.scan(()), {}, [], (Problem(recipe.location("command"), message),)
    text = _without(filled, _EMPTY_LINE)
    if recipe.version == 1 and backend != "ray" and (alone := _without(text, _JOINS_MACHINES)) != text:
        text = _without(alone, _EMPTY_LINE)
    parsed = shell.scan(text)
    wrong = [
        shell.CommandProblem(placeholder.written, placeholder.offset, fault)
        for placeholder in shell.placeholders(units)
        if (fault := _value_fault(placeholder, {**own, **given}))
    ]
    wrong += parsed.wrong or (() if wrong else shell.unquotable(parsed, given))
    told = islice((*misread, *wrong), _MOST_TOLD)
    problems = [Problem(_in_command(recipe, each.written, each.offset), each.message) for each in told]
    if not wrong and not parsed.commands:
        problems.append(Problem(recipe.location("command"), "`command`: the text contains no command"))
    return parsed, given, options, tuple(problems)


def _without(units: Iterable[Unit], pattern: re.Pattern[str]) -> list[Unit]:
    kept = list(units)
    for match in reversed(list(pattern.finditer(shell.text_of_units(kept)))):
        del kept[match.start() : match.end()]
    return kept


def _value_fault(placeholder: Placeholder, values: Mapping[str, Scalar]) -> str:
    if placeholder.key not in values:
        known_keys = ", ".join(sorted(values)) or "none"
        return f"no value for {{{placeholder.key}}}: set it under `defaults`; known keys: {known_keys}"
    try:
        text = shell.text_of(placeholder, values[placeholder.key])
    except ValueError as error:
        return f"`{placeholder.written}`: {error}"
    return f"the value of {{{placeholder.key}}} contains a NUL character" if "\0" in text else ""


def _overridden(recipe: Recipe, used: Sequence[str], overrides: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The overrides by the ``used`` keys of the command, and the options to append for the others."""
    given: dict[str, str] = {}
    options: list[str] = []
    for name, value in overrides.items():
        meant = _meant(name)
        if keys := [key for key in used if _meant(key) == meant]:
            given |= dict.fromkeys(keys, value)
        elif meant in _OPTIONS.values():
            # The last one counts: vLLM parses its options with argparse.
            options += [meant, value]
        else:
            hint = f"its placeholders: {', '.join(used) or 'none'}"
            raise UsageError(f"{recipe.file}: its command has no placeholder {{{name}}}", hint=hint)
    return given, options


def _meant(key: str) -> str:
    """The option that a key stands for, or the key itself, spelled with ``_``."""
    plain = key.replace("-", "_").lower()
    return _OPTIONS.get(plain, plain)


def _is_server(words: Sequence[str]) -> bool:
    return "vllm serve" in " ".join(words) or any("vllm.entrypoints" in word for word in words)

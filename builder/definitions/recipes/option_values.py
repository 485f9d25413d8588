"""Values of options that vLLM refuses when it parses them, and options that contradict each other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.definitions.recipes import arguments, option_places
from builder.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.definitions.recipes.option_places import UsedOption
    from builder.definitions.recipes.recipe import Recipe

# Options of vLLM that take a number: https://docs.vllm.ai/en/stable/cli/serve.html
_SHARES = frozenset({"gpu-memory-utilization"})
_COUNTS = frozenset({"tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"})
# Some of these also take `8k` or `auto`.
_OTHER_NUMBERS = frozenset(
    {"max-model-len", "max-num-seqs", "max-num-batched-tokens", "block-size", "seed", "nnodes", "node-rank"}
    | {"cpu-offload-gb", "swap-space", "kv-cache-memory-bytes", "max-logprobs"}
)
# The least that vLLM takes; -1 stands for what it finds itself.
_LEAST = {
    **dict.fromkeys(("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "nnodes"), 1),
    **dict.fromkeys(("max-num-seqs", "max-num-batched-tokens", "block-size", "kv-cache-memory-bytes"), 1),
    **dict.fromkeys(("node-rank", "swap-space", "cpu-offload-gb"), 0),
    **dict.fromkeys(("max-model-len", "max-logprobs"), -1),
}
_PORTS = frozenset({"port", "master-port"})
_HIGHEST_PORT = 65535
_HOST = re.compile(r"(?!-)[A-Za-z0-9._:%-]*")
_NAMES = frozenset({"served-model-name", "model", "revision", "tokenizer"})
_ONE_LINE = "a name has no line break and no control character"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SHORT = {"tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size"}
# Each of several is taken.
_COLLECTED = frozenset({"middleware"})


def name_of(option: str) -> str:
    """The name of an option without its dashes: ``-tp`` and ``--tensor_parallel_size`` are ``tensor-parallel-size``."""
    name = option.lstrip("-").replace("_", "-")
    return _SHORT.get(name, name)


def problems(recipe: Recipe, words: Sequence[str]) -> Iterator[Problem]:
    """The values that are no numbers where vLLM takes one, and numbers beyond their range."""
    for used in option_places.options(words):
        message = _number_fault(name_of(used.option), used.value) if used.value is not None else ""
        if message:
            yield Problem(option_places.of_value(recipe, used), f"{used.option} {used.value}: {message}")


def name_problems(recipe: Recipe, words: Sequence[str]) -> Iterator[Problem]:
    """The values that are no host, port or name of a model. They go into addresses, labels and files of other programs;
    what only a shell can tell is left to it."""
    for used in option_places.options(words):
        several = arguments.values(words, used.option)
        message = "" if used.value is None else _name_fault(name_of(used.option), used.value, several)
        if message:
            yield Problem(option_places.of_value(recipe, used), f"{used.option} {used.value}: {message}")
    loaded = arguments.model(words) or ""
    if _CONTROL.search(loaded):
        yield Problem(recipe.location("command"), f"the model {loaded!r}: {_ONE_LINE}")


def _name_fault(name: str, value: str, several: Sequence[str]) -> str:
    is_told_by_shell = bool(re.search(r"[$`]", value))
    if name == "host" and not _HOST.fullmatch(value) and not is_told_by_shell:
        return "a host name or an address is meant, such as 0.0.0.0"
    is_port = re.fullmatch("[0-9]{1,5}", value) and 1 <= int(value) <= _HIGHEST_PORT
    if name in _PORTS and not is_port and not is_told_by_shell:
        return f"a port is meant: 1 to {_HIGHEST_PORT}"
    return _ONE_LINE if name in _NAMES and any(map(_CONTROL.search, (*several, value))) else ""


def _number_fault(name: str, value: str) -> str:
    if name not in _SHARES | _COUNTS | _OTHER_NUMBERS or re.search(r"[$`]", value):
        return ""
    if re.fullmatch(r"\d+(,\d+)+", value):
        meant = value.replace(",", "." if name in _SHARES else "")
        return f"a number has no comma; {meant} is meant"
    if name in _COUNTS and not re.fullmatch(r"-?[0-9]+", value):
        return "a whole number is meant"
    least = _LEAST.get(name)
    if least is not None and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value):
        if float(value) < least:
            return f"{least} or more is meant"
        if name == "max-model-len" and float(value) == 0:
            return "1 or more is meant"
    if name not in _SHARES:
        return ""
    try:
        share = float(value)
    except ValueError:
        return "a number is meant, such as 0.85"
    return "" if 0 < share <= 1 else "a share of the memory is meant: more than 0, and 1 at most"


def contradictions(recipe: Recipe, words: Sequence[str]) -> Iterator[Problem]:
    """A note for each option that stands again with another value: vLLM takes the last one."""
    if words.count("serve") > 1:
        return  # a script that serves in one of several ways
    latest: dict[str, UsedOption] = {}
    for used in option_places.options(words):
        name = name_of(used.option)
        switch = name.removeprefix("no-") if used.value is None else name
        earlier = latest.get(switch)
        if earlier and name not in _COLLECTED and _value(earlier) != _value(used):
            message = f"`{_written(used)}` CONTRADICTS `{_written(earlier)}` before it; vLLM takes the last one"
            yield Problem(option_places.of_option(recipe, used), message)
        latest[switch] = used


def _value(used: UsedOption) -> str:
    if used.value is not None:
        return used.value
    return "off" if name_of(used.option).startswith("no-") else "on"


def _written(used: UsedOption) -> str:
    value = used.value if used.value is None or len(used.value) <= 40 else f"{used.value[:39]}…"
    return used.option if value is None else f"{used.option} {value}"

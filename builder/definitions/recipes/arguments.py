"""The arguments of a serve command: options, the model, the port."""

from __future__ import annotations

from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

# What joins several machines, as vLLM's option calls it: its own processes on each of them, or Ray.
Backend = Literal["mp", "ray"]
BACKEND = "--distributed-executor-backend"

# The options whose product is the number of GPUs: https://docs.vllm.ai/en/stable/serving/parallelism_scaling.html
_PARALLELISM = {
    "tp": ("-tp", "--tensor-parallel-size", "--tensor_parallel_size"),
    "pp": ("-pp", "--pipeline-parallel-size", "--pipeline_parallel_size"),
    "dp": ("-dp", "--data-parallel-size", "--data_parallel_size"),
}

# The default port of `vllm serve`: https://docs.vllm.ai/en/stable/cli/serve.html
VLLM_PORT = 8000
LOOPBACK = "127.0.0.1"


def option(words: Sequence[str], *names: str) -> str | None:
    """The value after one of ``names`` in ``words``, or after its ``=``; the last one if there are several."""
    result = None
    for word, following in zip(words, (*words, None)[1:], strict=True):
        name, sign, value = word.partition("=")
        if name in names:
            result = value if sign else following
    return result


def values(words: Sequence[str], name: str) -> tuple[str, ...]:
    """The values of an option that takes several of them: everything up to the next option."""
    result: tuple[str, ...] = ()
    for at, word in enumerate(words):
        if word.startswith(f"{name}="):
            result = (word.partition("=")[2],)
        elif word == name:
            result = tuple(takewhile(lambda following: not following.startswith("-"), words[at + 1 :]))
    return result


def model(words: Sequence[str]) -> str | None:
    """The model that `vllm serve MODEL` or `--model` names."""
    for word, following in pairwise(words):
        if word == "serve" and not following.startswith("-"):
            return following
    return option(words, "--model")


def served(words: Sequence[str]) -> tuple[str, ...]:
    """The model names that the server accepts."""
    loaded = model(words)
    return values(words, "--served-model-name") or ((loaded,) if loaded else ())


def port(words: Sequence[str]) -> int | None:
    """The port that the server listens on; None where only the shell can tell."""
    text = option(words, "--port")
    if text is None:
        return VLLM_PORT
    return int(text) if text.isascii() and text.isdecimal() else None


def reached_at(host: str | None) -> str:
    """The address at which a server that listens on ``host`` is reached from its own machine."""
    return host if host not in {None, "", "0.0.0.0", "::"} else LOOPBACK  # noqa: S104


def parallelism(words: Sequence[str]) -> dict[str, int]:
    """The sizes that the words give, by their short names ``tp``, ``pp`` and ``dp``; none where only the shell can
    tell."""
    texts = {name: option(words, *options) or "" for name, options in _PARALLELISM.items()}
    return {name: int(text) for name, text in texts.items() if text.isascii() and text.isdecimal()}


def without_backend(words: Sequence[str]) -> tuple[str, ...]:
    """``words`` without the option that says what joins several machines."""
    return without(words, BACKEND)


def without(words: Sequence[str], name: str) -> tuple[str, ...]:
    """``words`` without the option of that name and its value."""
    kept: list[str] = []
    waiting = iter(words)
    for word in waiting:
        if word == name:
            next(waiting, None)
        elif not word.startswith(f"{name}="):
            kept.append(word)
    return tuple(kept)

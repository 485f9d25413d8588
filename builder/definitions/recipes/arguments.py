"""The arguments of a serve command: options, the model, the port."""

from __future__ import annotations

from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# The default port of `vllm serve`: https://docs.vllm.ai/en/stable/cli/serve.html
VLLM_PORT = 8000
LOOPBACK = "127.0.0.1"


def option(words: Sequence[str], *names: str) -> str | None:
    """The value after one of ``names`` in ``words``, or after its ``=``; the last one if there are several."""
    result = None
    for word, following in zip(words, (*words[1:], None), strict=True):
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

"""What the words of a serve command say: options, the model, the port."""

from __future__ import annotations

from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# What `vllm serve` listens on where the command does not say: https://docs.vllm.ai/en/stable/cli/serve.html
VLLM_PORT = 8000
LOOPBACK = "127.0.0.1"


def option(words: Sequence[str], *names: str) -> str | None:
    """The value that follows one of ``names`` in ``words``, or stands after its `=`; the last where there are more."""
    found = None
    for word, following in zip(words, (*words[1:], None), strict=True):
        name, sign, value = word.partition("=")
        if name in names:
            found = value if sign else following
    return found


def values(words: Sequence[str], name: str) -> tuple[str, ...]:
    """All that follows an option which takes several values, up to the next option."""
    found: tuple[str, ...] = ()
    for at, word in enumerate(words):
        if word.startswith(f"{name}="):
            found = (word.partition("=")[2],)
        elif word == name:
            found = tuple(takewhile(lambda one: not one.startswith("-"), words[at + 1 :]))
    return found


def model(words: Sequence[str]) -> str | None:
    """What `vllm serve MODEL` or `--model` names."""
    for word, following in pairwise(words):
        if word == "serve" and not following.startswith("-"):
            return following
    return option(words, "--model")


def served(words: Sequence[str]) -> tuple[str, ...]:
    """The names that the server answers to."""
    loaded = model(words)
    return values(words, "--served-model-name") or ((loaded,) if loaded else ())


def port(words: Sequence[str]) -> int | None:
    """The port that the server listens on; None where the words say it in a way that only their shell can tell."""
    said = option(words, "--port")
    if said is None:
        return VLLM_PORT
    return int(said) if said.isascii() and said.isdecimal() else None


def reached_at(host: str | None) -> str:
    """Where a server that listens on ``host`` is reached from its own machine."""
    return host if host not in {None, "", "0.0.0.0", "::"} else LOOPBACK  # noqa: S104

"""The key that a server asks its clients for: vLLM takes it from ``--api-key``, else from ``VLLM_API_KEY``
(https://docs.vllm.ai/en/stable/serving/openai_compatible_server.html).

It is read from the server's own container, whatever gave it: the recipe, builder.yaml, or the request. From then on it
is shown and written nowhere (`redaction.learn`), and reaches other programs by their environment alone.
"""

from __future__ import annotations

import itertools
import re
import shlex
from typing import TYPE_CHECKING

from builder import redaction
from builder.engine import services

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.serving.running import RunningServer

VARIABLE = "VLLM_API_KEY"
PASSED_ON = "BUILDER_API_KEY"
"""The variable in which a program that measures gets the key."""

_OPTION = "--api-key"
_REFERENCE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def of(server: RunningServer) -> str:
    """The key of a server; empty where it asks for none."""
    process = services.process(server.head.engine.endpoint, server.head.service.id)
    key = in_command(process.argv, process.environ) or process.environ.get(VARIABLE, "")
    if key:
        redaction.learn(key)
    return key


def in_command(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """The first key that a command names, which may be a shell's; empty where it names none."""
    words = [*_words(argv, environ), ""]
    for word, following in itertools.pairwise(words):
        if is_option(word):
            _, _, value = word.partition("=")
            return value if "=" in word else following
    return ""


def without(words: Sequence[str]) -> list[str]:
    """``words`` without the options that name a key, and their values."""
    left, is_value = [], False
    for word in words:
        if not is_value and not is_option(word):
            left.append(word)
        is_value = is_option(word) and "=" not in word
    return left


def is_option(word: str) -> bool:
    """True for the option that names the key, in either of vLLM's spellings."""
    return word.partition("=")[0].replace("_", "-") == _OPTION


def passed_on(key: str) -> dict[str, str]:
    """The variables by which a program that measures gets a key; none where there is none."""
    return {PASSED_ON: key} if key else {}


def _words(argv: Sequence[str], environ: Mapping[str, str]) -> Iterator[str]:
    """The words of a command, those of scripts in it included, with the values of variables in these."""
    for argument in argv:
        if _OPTION not in argument.replace("_", "-") or len(argument.split()) == 1:
            yield argument
            continue
        script = _REFERENCE.sub(lambda match: environ.get(match[1] or match[2], match[0]), argument)
        try:
            yield from shlex.split(script, comments=True)
        except ValueError:  # a script in which not every quote is one, as in a here-document
            yield from script.split()

"""The exit codes of the program, and what each means: the docstrings of the errors that have them."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from dataclasses import dataclass

from builder import errors
from builder.errors import BUG, INTERRUPTED

_FIXED = {
    0: "done",
    BUG: "a bug; the message names a report to send",
    INTERRUPTED: "interrupted with ^C or SIGTERM; what was begun is taken back",
}


@dataclass(frozen=True)
class ExitCode:
    """An exit code, and the ``meanings`` that it may have."""

    code: int
    meanings: tuple[str, ...]


def every() -> tuple[ExitCode, ...]:
    """All exit codes, sorted."""
    meanings: dict[int, list[str]] = defaultdict(list, {code: [text] for code, text in _FIXED.items()})
    for kind in errors.BuilderError.__subclasses__():
        first = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        meanings[kind.exit_code].append(_lower(re.split(r"[;.](?: |$)", first)[0]))
    return tuple(ExitCode(code, tuple(texts)) for code, texts in sorted(meanings.items()))


def _lower(text: str) -> str:
    first = text.partition(" ")[0]
    return text if not first.istitle() else text[0].lower() + text[1:]

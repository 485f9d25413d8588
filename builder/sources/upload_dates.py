"""Upload dates of packages: a closure as of a day, and what an index without dates means for it.

uv leaves out every file that is newer than a date, and also every file that its index gives no date of (PEP 700), but
for those in a folder of wheels. Left at that, an index without dates would have nothing at all, or only old versions
that need none of its packages.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from builder.definitions.package_name import canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_UNDATED = re.compile(r"warning: `(?P<file>[^`]+)` is missing an upload date.*")
_PROGRESS = re.compile(r"Resolved \d+ packages? in .*")
_SUFFIX = re.compile(r"(\.tar\.\w+|\.zip|\.tgz)$")
# Each run of uv finds packages without a date that those before it did not come to. An index that gives none takes as
# many as its packages are nested; beyond these, no date is asked for.
_RUNS = 12


class Dated(NamedTuple):
    """The outcome of resolving a closure as of a day: uv's lock, its messages, and the packages whose index gives no
    dates. Without ``limited`` it is the closure of today."""

    lock: dict[str, Any]
    messages: str
    undated: frozenset[str]
    limited: bool


def compile_as_of(
    compile_closure: Callable[[list[str]], tuple[dict[str, Any], str]],
    as_of: str,
    exempt: Collection[str],
    requested: frozenset[str],
) -> Dated:
    """Runs ``compile_closure`` with the options of uv for nothing newer than ``as_of`` (RFC 3339; empty for no limit)
    but the packages ``exempt``.

    Packages whose index gives no dates are taken whatever their age; where all that is ``requested`` is among them, no
    index is asked for a date any more.
    """
    undated: frozenset[str] = frozenset()
    for _ in range(_RUNS if as_of else 0):
        lock, messages = compile_closure(_options(as_of, sorted({*exempt, *undated})))
        more = _undated(messages) - undated
        if not more:
            return Dated(lock, _without_warnings(messages), undated, limited=True)
        undated |= more
        if requested and requested <= undated:
            break
    lock, messages = compile_closure(["--quiet"])
    return Dated(lock, messages, undated, limited=False)


def _options(as_of: str, exempt: list[str]) -> list[str]:
    options = ["--exclude-newer", as_of]
    for name in exempt:
        options += ["--exclude-newer-package", f"{name}=false"]
    return options


def _undated(messages: str) -> frozenset[str]:
    """The normalised names of the packages that uv left out files of because they have no date."""
    matches = (_UNDATED.fullmatch(line) for line in messages.splitlines())
    return frozenset(_package(match["file"]) for match in matches if match)


def _package(file: str) -> str:
    """The package of a wheel or a source distribution, by its file name."""
    name = file.partition("-")[0] if file.endswith(".whl") else _SUFFIX.sub("", file).rpartition("-")[0]
    return canonical(name)


def _without_warnings(messages: str) -> str:
    """The messages that are left with ``--quiet``, without which uv tells of packages that have no date."""
    lines = messages.splitlines()
    return "\n".join(line for line in lines if not (line.startswith("warning: ") or _PROGRESS.fullmatch(line))).strip()

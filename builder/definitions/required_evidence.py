"""The evidence that a pairing requires before an image serves it: ``requires:`` of a recipe or of builder.yaml.

    requires: {prove: pass, probe: [tools-long], bench: {tg at 32768: ">= 95 % of current"}}

This module reads what is written; if it is met, ``evidence.requirements`` tells.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.errors import Problem
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.yaml import yaml_file

KEYS = ("prove", "probe", "bench")
# The figures of a bench run; probes may print others.
FIGURES = ("tg", "pp", "ttfr", "acceptance", "memory_floor", "kv_tokens", "startup")
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,6})?"
_FIGURE = re.compile(r"([a-z][a-z0-9_]*)(?: at ([0-9]{1,9}))?(?:, concurrency ([1-9][0-9]{0,4}))?")
_CONDITION = re.compile(rf"(>=|<=)\s*({_NUMBER})\s*(%\s*of\s+current)?")


@dataclass(frozen=True)
class RequiredFigure:
    """A bound for one figure of a bench run: the mean of ``name`` at that depth and concurrency is at least (else at
    most) ``limit``, or that percentage of what the current image reaches."""

    name: str
    depth: int | None
    concurrency: int | None
    at_least: bool
    limit: float
    of_current: bool

    @property
    def figure(self) -> str:
        """The figure as it is written: ``tg at 32768``."""
        depth = "" if self.depth is None else f" at {self.depth}"
        return f"{self.name}{depth}" + (f", concurrency {self.concurrency}" if self.concurrency else "")

    @property
    def condition(self) -> str:
        """The bound as it is written: ``>= 95 % of current``."""
        return f"{'>=' if self.at_least else '<='} {_plain(self.limit)}" + (" % of current" if self.of_current else "")

    def __str__(self) -> str:
        return f"{self.figure} {self.condition}"


@dataclass(frozen=True)
class RequiredEvidence:
    """The evidence that has to be recorded of an image before it serves a model: its proof passed, these probes passed,
    these figures within their bounds."""

    prove: bool = False
    probes: tuple[str, ...] = ()
    figures: tuple[RequiredFigure, ...] = ()

    def __bool__(self) -> bool:
        return self != NOTHING_REQUIRED

    def joined(self, other: RequiredEvidence) -> RequiredEvidence:
        """All that either of the two requires."""
        return RequiredEvidence(
            self.prove or other.prove,
            tuple(dict.fromkeys((*self.probes, *other.probes))),
            tuple(dict.fromkeys((*self.figures, *other.figures))),
        )


NOTHING_REQUIRED = RequiredEvidence()


def parsed(data: dict[str, Any] | None) -> RequiredEvidence:
    """Reads a mapping that has no `problems`."""
    data = data or {}
    probes = data.get("probe") or ()
    figures = (_figure(str(figure), str(condition)) for figure, condition in (data.get("bench") or {}).items())
    return RequiredEvidence(
        prove=data.get("prove") == "pass",
        probes=(probes,) if isinstance(probes, str) else tuple(dict.fromkeys(probes)),
        figures=tuple(figure for figure in figures if isinstance(figure, RequiredFigure)),
    )


def problems(data: object, path: yaml_file.Path, text: str, file: str) -> Iterator[Problem]:
    """The problems that the schema does not tell, in the mapping at ``path`` of ``file``: figures that no run has, and
    conditions of no known form."""
    bench = data.get("bench") if isinstance(data, dict) else None
    if not isinstance(bench, dict):
        return
    from builder.yaml.yaml_file import location_of, locations

    places = locations(text, file)
    for figure, condition in bench.items():
        if isinstance(condition, str) and isinstance(complaint := _figure(str(figure), condition), str):
            yield Problem(location_of((*path, "bench", figure), places, file), complaint)


def _figure(figure: str, condition: str) -> RequiredFigure | str:
    """The required figure, or why it is none."""
    name = _FIGURE.fullmatch(figure)
    if name is None:
        return f"`{figure}` names no figure: `tg`, `tg at 32768` or `tg at 32768, concurrency 4`"
    if name[1] not in FIGURES:
        nearest = did_you_mean(name[1], FIGURES, code=True) or f"known here: {', '.join(FIGURES)}"
        return f"no bench measures `{name[1]}`; {nearest}"
    bound = _CONDITION.fullmatch(condition.strip())
    if bound is None:
        return f"`{condition}` is no condition: `>= 40`, `<= 2000` or `>= 95 % of current`"
    depth, concurrency = (None if part is None else int(part) for part in (name[2], name[3]))
    return RequiredFigure(name[1], depth, concurrency, bound[1] == ">=", float(bound[2]), bound[3] is not None)


def _plain(limit: float) -> str:
    """A number without an exponent, and without zeros that say nothing."""
    return f"{limit:.6f}".rstrip("0").rstrip(".")

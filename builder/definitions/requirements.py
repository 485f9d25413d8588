"""Python requirements as people write them, checked by the standard's own parser (PEP 508).

The parser is asked only before pins are resolved: what is pinned was checked then, and it takes 13 ms to import.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder import yamlfile
from builder.errors import FileProblemsError, Problem

if TYPE_CHECKING:
    from pathlib import Path


def canonical(package: str) -> str:
    """A package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", package).lower()


def check_requirements(path: Path, file: str, where: yamlfile.Path, requirements: tuple[str, ...]) -> None:
    """Raises FileProblemsError naming every requirement in the list at ``where`` that no installer would take."""
    from packaging.requirements import InvalidRequirement, Requirement

    wrong: list[tuple[int, str]] = []
    for index, text in enumerate(requirements):
        try:
            Requirement(text)
        except InvalidRequirement as error:
            wrong.append((index, str(error).splitlines()[0]))
    if wrong:
        known = yamlfile.places(path.read_text(encoding="utf-8-sig"), file)
        places = ((yamlfile.place_of((*where, index), known, file), said) for index, said in wrong)
        raise FileProblemsError(tuple(Problem(place, f"not a requirement: {said}") for place, said in places))

"""Names of Python packages."""

from __future__ import annotations

import re


def canonical(package: str) -> str:
    """A package's name as indexes and locks spell it (PEP 503).

    As `packaging.utils.canonicalize_name` spells it; importing that takes as long as the parser of requirements does.
    """
    return re.sub(r"[-_.]+", "-", package).lower()

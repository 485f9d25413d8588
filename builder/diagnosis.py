"""The result of one check of a machine or a project."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Diagnosis:
    """The result of one check. ``remedy`` is what to do, empty where all is well."""

    subject: str
    verdict: Literal["ok", "warning", "error"]
    message: str
    remedy: str = ""

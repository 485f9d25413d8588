"""The day of a release: when the first of its wheels was uploaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder import timestamp
from builder.errors import SourceError
from builder.sources import python

if TYPE_CHECKING:
    from builder.definitions.image import PythonRequirements
    from builder.sources.environment import UserSettings


def read(requirement: str, wants: PythonRequirements, platform: str, settings: UserSettings) -> str:
    """Returns the upload time (RFC 3339 UTC) of what ``requirement`` (``vllm==0.32.0``; ``vllm`` for the newest) stands
    for; empty if its index gives none. Raises SourceError if there is no such package.

    Of several wheels it is the first one's, as others are added to a release for months.
    """
    request = python.ClosureRequest(wants, (), (requirement,), platform)
    options = ["--no-deps", "--quiet", *python.target_options(wants, platform)]
    lock, error = python.compile_closure(request, settings, (), options)
    if not lock:
        raise SourceError(f"{requirement} is not found:\n{error}")
    files = [file for package in lock["packages"] for file in package.get("wheels", ())]
    times = [timestamp.of(file["upload-time"]) for file in files if "upload-time" in file]
    return min(times, default="")

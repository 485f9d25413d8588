"""The commit that a wheel was built from, read from its ``_version.py`` alone: kilobytes of hundreds of megabytes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.sources.wheels import wheel_archive

if TYPE_CHECKING:
    from pathlib import Path

# As setuptools-scm and vcs-versioning write it: commit_id = 'gb1388b1fb'; the g stands for git.
_COMMIT = re.compile(r"commit_id = ['\"]g?([0-9a-f]{7,40})['\"]")


def read(address: str, ca_file: Path | None) -> str | None:
    """Returns the first digits (7 to 40) of the commit that the wheel at ``address`` (https: or file:) was built from;
    None if it names none. Raises SourceError if the wheel cannot be read."""
    with wheel_archive.open_wheel(address, ca_file) as archive:
        names = [name for name in archive.namelist() if re.fullmatch(r"[^/]+/_version\.py", name)]
        matches = [_COMMIT.search(archive.read(name).decode("utf-8", "replace")) for name in names]
    return next((match[1] for match in matches if match), None)

"""The release of this program: its number, and the commit that it was made from."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
# Written by hatch_build.py when a wheel or a source archive is made.
COMMIT_FILE = _PACKAGE / "commit"
# Names of such an address: https://packaging.python.org/en/latest/specifications/well-known-project-urls/
_SOURCE_NAMES = frozenset({"source", "repository", "sourcecode", "source code", "github"})


@dataclass(frozen=True)
class ProgramRelease:
    """The number of a release, and the commit that it was made from; empty where that is not recorded."""

    number: str
    commit: str

    def __str__(self) -> str:
        return f"{self.number} ({self.commit[:12]})" if self.commit else self.number


def of_this_program() -> ProgramRelease:
    """The release that is running: of a wheel as it was recorded when that was made, of a checkout as git has it."""
    from importlib import metadata

    return ProgramRelease(metadata.version("builder"), _commit())


def repository() -> str:
    """The address of the repository that this program's releases come from: that which a checkout was cloned from, or
    the one that the wheel names as its source; empty where neither is told."""
    from importlib import metadata

    if _is_checkout():
        from builder.sources import foreign_files

        return foreign_files.origin_of(_PACKAGE.parent)
    urls = metadata.metadata("builder").get_all("Project-URL") or ()
    named = (url.partition(", ") for url in urls)
    return next((address for name, _, address in named if name.lower() in _SOURCE_NAMES), "")


def newer(address: str) -> str:
    """The tag of a release that the repository at ``address`` has and that is newer than this one; empty where there is
    none. Raises SourceError where it cannot be asked."""
    from packaging.version import Version

    from builder.sources import vllm_versions

    tag = vllm_versions.newest_version_tag(address)
    return tag if tag and Version(tag) > Version(of_this_program().number) else ""


def _is_checkout() -> bool:
    return (_PACKAGE.parent / ".git").exists()  # a repository further above has another program


def _commit() -> str:
    with suppress(OSError):
        return COMMIT_FILE.read_text(encoding="ascii").strip()
    if not _is_checkout():
        return ""
    from builder.sources import foreign_files

    return foreign_files.commit_of(_PACKAGE.parent)

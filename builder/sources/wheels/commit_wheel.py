"""The wheel of one commit: vLLM publishes one for each commit of its main line, on an index of that commit's own."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.definitions.image import Index, PythonRequirements
from builder.errors import SourceError
from builder.sources.wheels import wheel_lookup
from builder.sources.wheels.wheel_lookup import WheelRequest

if TYPE_CHECKING:
    from pathlib import Path

    from builder.sources.environment import UserSettings

COMMIT = "COMMIT"
"""The word for the 40 digits in the address of an index."""
PUBLISHED = f"https://wheels.vllm.ai/{COMMIT}"
"""The indexes of vLLM's commits, with what a release has on PyPI: a variant (``/cu130``) may follow. From "Install
specific revisions" in https://docs.vllm.ai/en/latest/getting_started/installation/gpu/."""
# As setuptools-scm writes it, with the variant behind it: 0.11.2.dev363+ge2f56c309.cu130
_NAMED = re.compile(r"\+(?:[a-z0-9]+\.)*g(?P<digits>[0-9a-f]{7,40})(?:\.|$)")
_INDEX = re.compile(r"https?://[^\s'\"\\]*?/(?P<commit>[0-9a-f]{40})(?![0-9a-f])[^\s'\"\\]*")
# An address that stays one word in a requirement file.
_ADDRESS = re.compile(r"https?://[^\s'\"\\$`;#]+")
# The part of uv's explanation that is not of how it resolves.
_BECAUSE = re.compile(r"Because (?:only )?(.+?)(?: and image depends on [^,]*)?, we can conclude")
_SHOWN = 200


@dataclass(frozen=True)
class CommitWheel:
    """The wheel of a commit: its version, its address and its SHA-256 (64 hex digits)."""

    version: str
    address: str
    sha256: str

    def line(self, package: str) -> str:
        """The entry in a requirement file: by its address, so that it is found whatever index the image installs
        from."""
        return f"{package} @ {self.address} \\\n    --hash=sha256:{self.sha256}\n"


def named(version: str) -> str:
    """The first digits (7 to 40) of the commit that a version names; empty for a release."""
    match = _NAMED.search(version)
    return match["digits"] if match else ""


def template(text: str, version: str) -> str:
    """The address of the index in ``text`` that is of the commit which ``version`` names, with ``COMMIT`` in its place;
    empty where there is none."""
    digits = named(version)
    of_commit = (match for match in _INDEX.finditer(text) if digits and match["commit"].startswith(digits))
    return next((match[0].replace(match["commit"], COMMIT) for match in of_commit), "")


def find(
    cache: Path, package: str, index: str, commit: str, wants: PythonRequirements, platform: str, settings: UserSettings
) -> CommitWheel:
    """The wheel of ``package`` that the index has of ``commit``, for this Python and platform. Raises SourceError where
    there is none, or it is of another commit."""
    from urllib.parse import unquote

    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    address = index.replace(COMMIT, commit)
    own = replace(wants, indexes=(Index(address, (package,), local=False),))
    try:
        wheel = wheel_lookup.find(cache, WheelRequest(package, own, platform, installable=True), settings)
        version = str(parse_wheel_filename(unquote(wheel.address.rpartition("/")[2]))[1])
    except SourceError as error:
        told = " ".join(error.message.split("\n", 1)[-1].split())
        if because := _BECAUSE.search(told):
            what = f"{address} has no wheel of {package} for {platform}, Python {wants.version}"
            raise SourceError(f"{what}: {because[1][:_SHOWN]}") from None
        raise SourceError(f"{address} does not tell its wheel of {package}: {told[:_SHOWN]}") from None
    except InvalidWheelFilename as error:
        raise SourceError(f"{address}: {error}") from None
    if not _ADDRESS.fullmatch(wheel.address):
        raise SourceError(f"a build cannot fetch {wheel.address!r}")
    if not commit.startswith(named(version)):
        raise SourceError(f"{address} has the wheel of another commit, {version}")
    return CommitWheel(version, wheel.address, wheel.sha256)

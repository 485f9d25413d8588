"""The record of the files that a project got from this program: `init --update` tells by it what was edited since.

It lies in the project, to be committed with it: what is in the state folder may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import FileProblemsError, Location, Problem
from builder.shipped.selection import CONTENTS
from builder.storage import atomic_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.project import Project
    from builder.shipped.selection import Contents

FILE = ".builder-init.json"
_FORMAT = 1


@dataclass(frozen=True)
class InitRecord:
    """The release that a project's files came with, what was chosen, and the digest of each file as it was written."""

    release: str
    contents: Contents
    digests: Mapping[str, str]


def digest(content: bytes) -> str:
    """The digest of a file, as the record has it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def read(project: Project) -> InitRecord | None:
    """Reads the record; None where the project has none. Raises FileProblemsError for one that cannot be read, or that
    a newer release wrote."""
    try:
        text = (project.root / FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(str(error)) from None
    try:
        data = json.loads(text)
        version, files = data["schema_version"], data["files"]
        contents, release = data["contents"], str(data["release"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(f"it is no record of `builder init`: {error}") from None
    if version != _FORMAT:
        raise _damaged(f"it has format {version}, and this release knows {_FORMAT}: a newer one wrote it")
    is_digests = isinstance(files, dict) and all(isinstance(value, str) for value in files.values())
    if contents not in CONTENTS or not is_digests:
        raise _damaged("it is no record of `builder init`")
    return InitRecord(release, contents, files)


def write(project: Project, record: InitRecord) -> None:
    """Writes the record, in one step. Raises OSError."""
    data = {
        "schema_version": _FORMAT,
        "release": record.release,
        "contents": record.contents,
        "files": dict(sorted(record.digests.items())),
    }
    atomic_file.write(project.root / FILE, (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode())


def _damaged(message: str) -> FileProblemsError:
    hint = "take it back from git; or delete it: then every file that differs from this release's counts as edited"
    return FileProblemsError((Problem(Location(FILE), message),), hint=hint)

"""A file of runs for other users: those of several images, which are told by their content and not by their number.

Whoever takes it keeps the runs as those of others (`traveling`): nothing in the file can say otherwise.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.errors import FileProblemsError, Location, Problem
from builder.evidence import traveling
from builder.lock import name_kinds
from builder.storage import regular_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builder.evidence.record import Evidence

LARGEST = 256 << 20
_KIND, _FORMAT = "builder evidence", 1
_HINT = "ask whoever wrote it for another: `builder evidence export` makes such a file"


@dataclass(frozen=True)
class SharedRuns:
    """The runs of an image, called ``image`` by whoever ran them."""

    image: str
    fingerprint: str
    runs: tuple[Evidence, ...]


def dump(shared: Sequence[SharedRuns]) -> bytes:
    """The content of the file: the same for the same runs."""
    images = [
        {"image": each.image, "fingerprint": each.fingerprint, "runs": traveling.files(each.runs)} for each in shared
    ]
    content = {"kind": _KIND, "format": _FORMAT, "images": images}
    return json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n"


def read(path: Path) -> tuple[SharedRuns, ...]:
    """The runs in a file that anyone may have written. Raises FileProblemsError where it is none, or one of its runs is
    no evidence: nothing of it is taken then."""
    shown = path.name
    try:
        data = json.loads(regular_file.read(path, LARGEST))
    except OSError as error:
        problem = Problem(Location(shown), error.strerror or str(error))
        raise FileProblemsError((problem,), hint="name a file that `builder evidence export` wrote") from None
    except (ValueError, RecursionError):
        raise _wrong(shown, "not a file of evidence: no JSON") from None
    if not isinstance(data, dict) or data.get("kind") != _KIND or not isinstance(data.get("images"), list):
        raise _wrong(shown, "not a file of evidence")
    if data.get("format") != _FORMAT:
        raise _wrong(shown, "written by another version of this program")
    return tuple(_read(each, shown) for each in data["images"])


def _read(data: Any, shown: str) -> SharedRuns:
    parts = data if isinstance(data, dict) else {}
    image, fingerprint = parts.get("image"), parts.get("fingerprint")
    if not isinstance(image, str) or not isinstance(fingerprint, str) or not _is_image(image):
        raise _wrong(shown, "not what this program writes: an image without name or content")
    return SharedRuns(image, fingerprint, traveling.read(parts.get("runs"), fingerprint, shown))


def _is_image(text: str) -> bool:
    repository, _, number = text.rpartition(":")
    return number.isdecimal() and name_kinds.is_a(name_kinds.REPOSITORY, repository)


def _wrong(shown: str, message: str) -> FileProblemsError:
    return FileProblemsError((Problem(Location(shown), message),), hint=_HINT)

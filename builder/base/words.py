"""Amounts, times, digests and versions as text; the patterns of names; and suggestions for a mistyped word.

Times in images.lock and in JSON are RFC 3339, in UTC, to the second.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.version import Version


# Amounts, times and digests in human-readable form.

_DAY = 86400
_UNITS = (("year", 365 * _DAY), ("month", 30 * _DAY), ("week", 7 * _DAY), ("day", _DAY), ("hour", 3600), ("min", 60))


def size_text(count: int) -> str:
    """A number of bytes in the decimal units that Docker prints."""
    left = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if left < 1000:
            return f"{left:.0f} {unit}" if unit == "B" or left >= 100 else f"{left:.1f} {unit}"
        left /= 1000
    return f"{left:.1f} TB"


def size_of(current: int, total: int) -> str:
    """The finished bytes and the total: 1.2 GB of 5.3 GB."""
    return f"{size_text(current)} of {size_text(total)}"


def amount_text(value: float, unit: str) -> str:
    """A measured amount with at least three digits. Only bytes have a unit."""
    if unit == "bytes" and value >= 0:
        return size_text(round(value))
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 100 else f"{value:.3g}"


def sha256_of(content: bytes) -> str:
    """The digest of content as OCI writes it: ``sha256:…``."""
    import hashlib

    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def short_digest(value: str) -> str:
    """The first 12 digits of a digest or a commit; any other value unchanged."""
    match = re.fullmatch(r"(?:.*sha256:)?([0-9a-f]{64})|([0-9a-f]{40})", value)
    return (match[1] or match[2])[:12] if match else value


def ago_text(stamp: str, now: datetime | None = None) -> str:
    """The age of an RFC 3339 time in its largest whole unit: 2 days ago; the text itself if it is not a time."""
    try:
        then = datetime.fromisoformat(stamp)
    except ValueError:
        return stamp
    seconds = ((now or datetime.now(UTC)) - then).total_seconds()
    for word, length in _UNITS:
        count = int(seconds // length)
        if count >= 1:
            plural = "s" if count > 1 and word != "min" else ""
            return f"{count} {word}{plural} ago"
    return "just now"


def is_day(text: str) -> bool:
    """True for a day of the calendar, written as 2026-11-26."""
    try:
        return str(datetime.fromisoformat(text).date()) == text
    except ValueError:
        return False


def shell_word(path: object) -> str:
    """A path or another value as one word of a command that a message proposes."""
    import shlex

    return shlex.quote(str(path))


def counted(number: int, word: str) -> str:
    """A number with the noun that it counts: 1 layer, 2 layers."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def duration_text(seconds: float) -> str:
    """A time taken: 4.2 s, 3 min 12 s or 2 h 05 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


# The label of each container that serves a model.
SERVER_LABEL = "builder.serve"

# The patterns of the names that users choose for files and folders, and that images.lock records.

# A name may become an argument, or a part of a command that a message proposes.
DEFINITION = r"(?![.-])[^/\\\x00-\x1f\x7f\"'`$;&|<>(){}\[\]*?#!]+"
# Repositories of images that have no number yet, which are removed by their names.
RESERVED_REPOSITORY = r"builder-(?:work|bisect-.*)"
RECIPE_FILE = r"(?![-~])(?!(?:.*/)?\.\.(?:/|$))[^\\\x00-\x1f\x7f]+"


# Suggestions for a word that was probably mistyped.


def did_you_mean(word: str, choices: Iterable[str], *, most: int = 1, code: bool = False, near: float = 0.6) -> str:
    """Returns ``did you mean X?`` with the choices that ``word`` resembles, at most ``most`` of them; empty if there
    are none. With ``code`` they are put in backquotes; ``near`` is the least resemblance, from 0 to 1."""
    # Imported here, since only an error needs it and commands must start fast.
    import difflib

    matches = difflib.get_close_matches(word, list(choices), n=most, cutoff=near)
    return f"did you mean {' or '.join(f'`{match}`' if code else match for match in matches)}?" if matches else ""


# Times in images.lock and in every --json: RFC 3339, UTC, to the second.

_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def now() -> str:
    """The present, such as ``2026-11-20T22:00:00Z``."""
    return time.strftime(_FORMAT, time.gmtime(time.time()))  # without an argument, gmtime reads a clock that lags


def timestamp_of(moment: datetime) -> str:
    """A time that has a time zone, as text."""
    return moment.astimezone(UTC).strftime(_FORMAT)


# Versions (PEP 440) and requirements (PEP 508) of Python packages, in untrusted text.


def parse_version(text: str) -> Version | None:
    """The version in ``text``; None if PEP 440 does not allow it, such as a tag or a distribution's version."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text)
    except InvalidVersion:
        return None


def parse_requirement(text: str) -> Requirement | None:
    """The requirement in ``text``; None if PEP 508 does not allow it."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return Requirement(text)
    except InvalidRequirement:
        return None

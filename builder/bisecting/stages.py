"""The stages of a Dockerfile that mods with scripts get: numbered in their order, each on the one before.

Which mods there are decides their numbers, so they are left open in a text that is to be mixed, and given at its end.
"""

from __future__ import annotations

import re

_BELOW, _OWN = "\0below\0", "\0mod\0"
_STAGE = re.compile(r"^FROM (?P<below>\S+) AS mod-(?P<own>\S+)$", re.MULTILINE)
_MOUNT = re.compile(r"(?<=--mount=type=bind,from=)\S+(?=,target=/run/builder/below,rw)")
_NAMED = re.compile(rb"^FROM .* AS (\S+)$")


def opened(dockerfile: str) -> str:
    """The text with these stages left open."""
    return _MOUNT.sub(_BELOW, _STAGE.sub(f"FROM {_BELOW} AS {_OWN}", dockerfile))


def named(dockerfile: bytes) -> bytes:
    """The text with every open stage named."""
    below, current, number = b"", b"", 0
    lines = []
    for line in dockerfile.splitlines(keepends=True):
        if _OWN.encode() in line:
            number += 1
            below = current
            line = line.replace(_OWN.encode(), b"mod-%d" % number)  # noqa: PLW2901
        line = line.replace(_BELOW.encode(), below)  # noqa: PLW2901
        if stage := _NAMED.match(line.rstrip(b"\n")):
            current = stage[1]
        lines.append(line)
    return b"".join(lines)

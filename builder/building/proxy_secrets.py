"""Proxies with a password, for build steps: as secrets, which BuildKit keeps nowhere.

As build arguments they would stand in BuildKit's record of the build, in its metadata, and in what buildx is called
with. Other proxies stay build arguments, which reach whatever a Dockerfile does.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.engine.buildkit.bake import Secret
from builder.sources.git import credentials

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_RUN = re.compile(r"\s*RUN\s+", re.IGNORECASE)
_WITH_HERE_DOCUMENTS = re.compile(r"\s*(?:RUN|COPY|ADD)\s", re.IGNORECASE)
# As BuildKit's parser finds them: https://docs.docker.com/reference/dockerfile/#here-documents
_HERE_DOCUMENT = re.compile(r"(?:^|\s)\d*<<(?P<tabs>-?)(?P<quote>[\"']?)(?P<end>[^\s<\"']+)(?P=quote)(?=\s|$)")


def split(proxies: Iterable[tuple[str, str]]) -> tuple[dict[str, str], dict[str, str]]:
    """Splits the user's proxies into those that are build arguments and those that are secrets."""
    logins = {name: value for name, value in proxies if has_login(value)}
    return {name: value for name, value in proxies if name not in logins}, logins


def has_login(address: str) -> bool:
    """True for an address with a user or a password, with or without its ``http://``."""
    return bool(credentials.split(address if "://" in address else f"http://{address}").secret)


def secrets(names: Iterable[str]) -> tuple[Secret, ...]:
    """The secrets of these variables."""
    return tuple(Secret(name, env=name) for name in names)


def mounted(dockerfile: str, names: Iterable[str]) -> str:
    """``dockerfile`` with these secrets as variables of every step that runs something, in capitals and in small
    letters as BuildKit sets its proxy arguments. Each line stays where it is."""
    mounts = "".join(
        f"--mount=type=secret,id={name},env={variable} " for name in names for variable in (name, name.lower())
    )
    lines = dockerfile.split("\n")
    for number in _instructions(lines):
        if start := _RUN.match(lines[number]):
            lines[number] = f"{start[0]}{mounts}{lines[number][start.end() :]}"
    return "\n".join(lines)


def _instructions(lines: list[str]) -> Iterator[int]:
    """The numbers of the lines in which an instruction begins: no comment, continued line or here-document."""
    number = 0
    while number < len(lines):
        first = number
        whole = lines[number]
        number += 1
        if not whole.strip() or whole.lstrip().startswith("#"):
            continue
        while whole.rstrip().endswith("\\") and number < len(lines):
            comment = lines[number].lstrip().startswith("#") or not lines[number].strip()
            whole = whole if comment else f"{whole.rstrip()[:-1]} {lines[number]}"
            number += 1
        yield first
        if _WITH_HERE_DOCUMENTS.match(whole):
            for here in _HERE_DOCUMENT.finditer(whole):
                while (
                    number < len(lines)
                    and (lines[number].lstrip("\t") if here["tabs"] else lines[number]) != here["end"]
                ):
                    number += 1
                number += 1

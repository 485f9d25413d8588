"""Addresses of mods and recipes in other repositories: ``GIT-URL[//FOLDER][@REF]``, or a page of GitHub or GitLab."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from builder.errors import UsageError

DEFAULT_BRANCH = "HEAD"
_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*")
_SCP = re.compile(r"(?:[^/@:]+@)?[^/:]+:(?!//)")
_PAGE = re.compile(r"(?P<url>https?://[^/]+/(?:[^/]+/)+?[^/]+?)(?:/-)?/(?:tree|blob)/(?P<ref>[^/]+)(?:/(?P<path>.*))?")
_FORM = "GIT-URL[//FOLDER][@REF]: https://github.com/OWNER/REPOSITORY//mods/NAME@main"


@dataclass(frozen=True)
class CopyAddress:
    """A path in the repository ``url`` at ``ref``: a branch, tag or commit, or the default branch (``HEAD``)."""

    url: str
    path: str
    ref: str


def parse(text: str) -> CopyAddress:
    """Parses an address as typed. Raises UsageError for one that names no repository, or a path that leaves it.

    ``//`` ends the repository's address. Of a page such as ``https://github.com/O/R/tree/REF/mods/NAME`` the ref is
    what stands in that place, so that a branch with a slash in its name needs the other form.
    """
    if page := _PAGE.fullmatch(text):
        return CopyAddress(page["url"], _path(unquote(page["path"] or ""), text), page["ref"])
    start = _AUTHORITY.match(text) or _SCP.match(text)
    host, rest = (start[0], text[start.end() :]) if start else ("", text)
    repository, double, path = rest.partition("//")
    at, ref = "", ""
    if double:
        path, at, ref = path.partition("@")
    elif host or not Path(repository).is_dir():  # a folder of this machine may have an @ in its name
        folder, at, ref = repository.rpartition("@")
        repository, ref = (folder, ref) if at else (repository, "")
    url = f"{host}{repository}" if host else str(Path(repository).expanduser().absolute())
    if text.startswith("-") or "::" in text.partition("/")[0] or not repository.strip("/"):
        raise UsageError(f"`{text}` is no address of a repository", hint=_FORM)
    if at and not ref:
        raise UsageError(f"`{text}`: no branch, tag or commit follows the @", hint=_FORM)
    return CopyAddress(url, _path(path, text), ref or DEFAULT_BRANCH)


def _path(text: str, whole: str) -> str:
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise UsageError(f"`{whole}`: a path in the repository has no `..`", hint=_FORM)
    return "/".join(parts)

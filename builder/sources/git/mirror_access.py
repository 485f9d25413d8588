"""Access to mirrors: found by address, locked while in use, created if missing, recreated if damaged."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

from builder.errors import SourceError
from builder.sources.git import credentials, mirror_creation
from builder.sources.git.errors import DamagedError
from builder.sources.git.git_command import GitRepository, Notify, discard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

T = TypeVar("T")


def with_mirror(mirrors: Path, url: str, action: Callable[[GitRepository], T], notify: Notify = discard) -> T:
    """Runs ``action`` on the mirror of ``url`` in the folder ``mirrors``, which is created if missing; returns its
    result.

    If the mirror turns out to be damaged, it is recreated and ``action`` is called once more. Raises SourceError.
    """
    repository = locate(mirrors, url, notify)
    try:
        with _locked(repository):
            mirror_creation.ensure(repository)
            try:
                return action(repository)
            except DamagedError as error:
                notify(f"{error.message}; making it anew")
                mirror_creation.rebuild(repository)
                return action(repository)
    except OSError as error:
        mirror = f"the mirror of {repository.address.url} in {repository.path}"
        message = f"{mirror} cannot be used: {error.strerror or error}"
        raise SourceError(message, hint="the folder has to be yours to write, on a disk with room") from None


def locate(mirrors: Path, url: str, notify: Notify = discard) -> GitRepository:
    """Returns the mirror of ``url``, which need not exist yet; credentials in the address make no difference. Raises
    SourceError if it is not an address."""
    import hashlib
    import re

    address = credentials.split(url.strip())
    is_odd = not address.url or not address.url.isprintable()
    if is_odd or "::" in address.url.partition("/")[0] or address.url.startswith("-"):
        raise SourceError(
            f"git cannot use the address `{address.url}`",
            hint="addresses look like https://host/owner/repository.git, ssh://git@host/… or /a/folder",
        )
    words = re.findall(r"[A-Za-z0-9._-]+", address.url.removesuffix("/").removesuffix(".git"))[-2:]
    key = hashlib.sha256(address.url.encode()).hexdigest()[:12]
    return GitRepository(mirrors.absolute() / f"{'-'.join(words)[-60:].lstrip('.-')}-{key}.git", address, notify)


@contextlib.contextmanager
def _locked(repository: GitRepository) -> Iterator[None]:
    """Holds the mirror for this thread alone."""
    from builder.storage import file_lock

    repository.path.parent.mkdir(parents=True, exist_ok=True)
    message = f"waiting for the mirror of {repository.address.url}, which is in use"
    with file_lock.locked(repository.path.with_suffix(".lock"), on_wait=lambda: repository.notify(message)):
        yield

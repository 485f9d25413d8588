"""Image references, ``[HOST[:PORT]/]PATH[:TAG][@DIGEST]``, taken apart.

https://github.com/distribution/reference/blob/main/reference.go
"""

from __future__ import annotations

DIGEST = "sha256:[0-9a-f]{64}"
"""The regular expression of a digest."""


def split_tag(name: str) -> tuple[str, str]:
    """Splits ``repository[:tag]``; the tag is ``latest`` by default. A colon before a slash belongs to a port."""
    repository_name, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        return name, "latest"
    return repository_name, tag


def repository(reference: str) -> str:
    """Returns the reference without its tag and digest."""
    return split_tag(reference.partition("@")[0])[0]


def familiar(reference: str) -> str:
    """Returns the reference as engines show it: without ``docker.io/`` and ``library/``."""
    for prefix in ("docker.io/", "index.docker.io/"):
        if reference.startswith(prefix):
            return reference.removeprefix(prefix).removeprefix("library/")
    return reference.removeprefix("library/")


def with_registry(repository_name: str) -> str:
    """Returns the full name for containerd, with ``docker.io/library/`` where the repository names no registry."""
    first, slash, _ = repository_name.partition("/")
    if not slash:
        return f"docker.io/library/{repository_name}"
    has_registry = "." in first or ":" in first or first == "localhost"
    return repository_name if has_registry else f"docker.io/{repository_name}"

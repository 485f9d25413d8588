"""The person's logins to registries, from Docker's own configuration and credential helpers."""

from __future__ import annotations

from builder.errors import SourceError


def headers(reference: str) -> dict[str, str]:
    """The header that gives the engine the login for the registry of ``reference``; empty where there is none.

    Raises SourceError where Docker's configuration or its credential helper cannot be read.
    """
    from docker import auth
    from docker.errors import DockerException

    try:
        registry, _ = auth.resolve_repository_name(reference)
        login = auth.load_config().resolve_authconfig(registry)
    except DockerException as error:
        raise SourceError(f"the login for the registry of {reference} cannot be read: {error}") from None
    return {"X-Registry-Auth": auth.encode_header(login).decode()} if login else {}

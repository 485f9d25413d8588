"""The user's credentials for registries, from Docker's own configuration and credential helpers."""

from __future__ import annotations

from builder.errors import SourceError


def auth_headers(reference: str) -> dict[str, str]:
    """Returns the header that gives the engine the credentials for the registry of ``reference``; empty without any.

    Raises SourceError where Docker's configuration or its credential helper cannot be read.
    """
    from docker import auth
    from docker.errors import DockerException

    try:
        registry, _ = auth.resolve_repository_name(reference)
        credentials = dict(auth.load_config().resolve_authconfig(registry) or {})
    except DockerException as error:
        raise SourceError(f"the login for the registry of {reference} cannot be read: {error}") from None
    return {"X-Registry-Auth": auth.encode_header(credentials).decode()} if credentials else {}

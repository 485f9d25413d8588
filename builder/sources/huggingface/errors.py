"""Errors of downloads from the Hugging Face hub, in words for the user. Neither the token nor a login in the hub's
address is ever repeated."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from builder.errors import ModelUnavailableError, SourceError
from builder.sources.git import credentials

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from httpx2 import HTTPError

PUBLIC = "https://huggingface.co"
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


def hub_address(environ: Mapping[str, str]) -> str:
    """Returns the address of the hub, without any login in it."""
    return credentials.split((environ.get("HF_ENDPOINT") or PUBLIC).rstrip("/")).url


@contextmanager
def translated_errors(environ: Mapping[str, str], model: str, revision: str) -> Iterator[None]:
    """Translates what huggingface_hub raises into a SourceError that says what to do."""
    from httpx2 import HTTPError
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        yield
    except (HTTPError, OSError, HFValidationError) as error:
        # huggingface_hub hides why there was no answer behind "not in the cache".
        hidden = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else None
        cause = hidden if isinstance(hidden, (HTTPError, OSError)) else error
        message, hint = _explain(environ, cause, model, revision)
        kind = ModelUnavailableError if _is_unavailable(environ, cause) else SourceError
        raise kind(_scrub(environ, message), hint=hint) from None


def _is_unavailable(environ: Mapping[str, str], error: Exception) -> bool:
    from huggingface_hub.errors import GatedRepoError, RevisionNotFoundError

    return isinstance(error, (GatedRepoError, RevisionNotFoundError)) or _is_missing(environ, error)


def _is_missing(environ: Mapping[str, str], error: Exception) -> bool:
    """True if the hub shows no such model. A request without a token gets a 401 for it. huggingface_hub (2.4) reads
    that as "not found" for addresses with https: only; HF_ENDPOINT may name an http: one."""
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    if isinstance(error, RepositoryNotFoundError):
        return True
    return isinstance(error, HfHubHTTPError) and error.response.status_code == 401 and not has_token(environ)


def _explain(
    environ: Mapping[str, str], error: HTTPError | OSError | ValueError, model: str, revision: str
) -> tuple[str, str]:
    from httpx2 import HTTPError
    from huggingface_hub.errors import HfHubHTTPError

    hub = hub_address(environ)
    if isinstance(error, HfHubHTTPError):
        return _refused(environ, error, model, revision)
    if isinstance(error, HTTPError):
        advice = "look at the network, HTTPS_PROXY and HF_ENDPOINT, and run this again: it goes on where it stopped"
        return f"{hub} does not answer: {_first_line(error)}", f"{advice}. HF_HUB_OFFLINE=1 takes what is in the cache"
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return (
            f"the disk is full: {error.filename or model}",
            "make room and run this again: it goes on where it stopped",
        )
    if isinstance(error, OSError) and error.errno:
        return (
            f"{error.filename or model}: {error.strerror}",
            "may this folder be written to? HF_HOME names another one",
        )
    return f"{model} cannot be downloaded: {_first_line(error)}", "run this again: it goes on where it stopped"


def _refused(environ: Mapping[str, str], error: HTTPError, model: str, revision: str) -> tuple[str, str]:
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RemoteEntryNotFoundError,
        RevisionNotFoundError,
    )

    hub = hub_address(environ)
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else 0
    if isinstance(error, GatedRepoError):
        message = f"{model} is gated: its terms have to be accepted at {hub}/{model}"
        if has_token(environ):
            return message, "do that with the account of HF_TOKEN, and see that this token may read gated models"
        return message, f"then set HF_TOKEN to a token of that account ({hub}/settings/tokens)"
    if isinstance(error, RevisionNotFoundError):
        return f"{model} has no revision `{revision}`", f"{hub}/{model}/commits/main shows those it has"
    if _is_missing(environ, error):
        private = "its token may not see it" if has_token(environ) else "HF_TOKEN is not set"
        return f"{hub} shows no model `{model}`", f"is the name right? If it is private: {private}"
    if status == 401:
        return f"{hub} refuses the token", f"set HF_TOKEN to a valid one ({hub}/settings/tokens), or unset it"
    if isinstance(error, RemoteEntryNotFoundError):
        return f"{hub} lists a file of {model} that it does not have", "is HF_ENDPOINT a whole mirror?"
    return f"{hub} answers {status}: {_first_line(error)}", "run this again later: it goes on where it stopped"


def has_token(environ: Mapping[str, str]) -> bool:
    """True if requests to the hub carry a token: HF_TOKEN, or one that `hf auth login` stored."""
    from huggingface_hub import get_token

    return bool(environ.get("HF_TOKEN") or get_token())


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _scrub(environ: Mapping[str, str], text: str) -> str:
    from huggingface_hub import get_token

    for secret in {environ.get("HF_TOKEN"), get_token(), credentials.split(environ.get("HF_ENDPOINT", "")).secret}:
        text = text.replace(secret, "***") if secret else text
    return text

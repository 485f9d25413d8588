"""Reading a range of bytes of a file on the hub, without the rest of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.sources.huggingface.errors import hub_address, translated_errors
from builder.storage import huggingface_cache

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.sources.huggingface.hub_models import Snapshot

_PARTIAL = 206
_CHUNK = 1 << 16


def read(environ: Mapping[str, str], snapshot: Snapshot, path: str, begin: int, size: int) -> bytes:
    """Returns ``size`` bytes at ``begin`` of a file of a model, fewer where it ends before. A server that sends whole
    files is stopped after what is wanted. Raises SourceError."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        build_hf_headers,
        hf_raise_for_status,
        http_stream_backoff,
    )

    if size <= 0:
        return b""
    url = hf_hub_url(
        huggingface_cache.repository(snapshot.model),
        path,
        revision=snapshot.commit,
        endpoint=environ.get("HF_ENDPOINT", "").rstrip("/") or None,
    )
    headers = {
        **build_hf_headers(token=environ.get("HF_TOKEN") or None),
        "Range": f"bytes={begin}-{begin + size - 1}",
        "Accept-Encoding": "identity",
    }
    with (
        translated_errors(environ, snapshot.model, snapshot.revision),
        http_stream_backoff("GET", url, headers=headers, follow_redirects=True, max_retries=3) as response,
    ):
        hf_raise_for_status(response)
        if begin and response.status_code != _PARTIAL:
            raise SourceError(
                f"{hub_address(environ)} sends whole files only, and a part of {snapshot.model}'s {path} is needed",
                hint="`builder download` fetches the model; then its headers are read here",
            )
        content = bytearray()
        for chunk in response.iter_bytes(_CHUNK):
            content += chunk
            if len(content) >= size:
                break
    return bytes(content[:size])

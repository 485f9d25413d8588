"""Artifacts beside an image in a registry: manifests that name it as their ``subject``, by its digest.

The image and its digest stay as they are, and artifacts may come at any time later. A registry lists them by itself
(https://github.com/opencontainers/distribution-spec/blob/main/spec.md#listing-referrers), or, where it is older, in an
index under a tag that is made of the digest.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from builder import http_client
from builder.engine.registry import oci_layout, registry_session
from builder.engine.registry.manifests import HINT
from builder.errors import TransferError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import httpx2

    from builder.engine.client.endpoint import Endpoint
    from builder.engine.registry.oci_layout import Descriptor
    from builder.engine.registry.registry_session import RegistrySession

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_EMPTY = "application/vnd.oci.empty.v1+json"
_EMPTY_CONTENT = b"{}"
_DOCKERS = "application/vnd.docker.distribution.manifest.v2+json", oci_layout.DOCKER_LIST
_ACCEPTED = ", ".join([_MANIFEST, _INDEX, *_DOCKERS])
_LARGEST_MANIFEST = 4 * 1024 * 1024
_LARGEST_ANSWER = 64 * 1024
_MOST_ARTIFACTS = 100
_TRIES = 3
_NOT_FOUND = 404


@dataclass(frozen=True)
class Artifact:
    """Blobs of one media type that belong together; ``annotations`` are those of each of them, and of the whole."""

    artifact_type: str
    annotations: Mapping[str, str]
    blobs: tuple[bytes, ...]


def attach(endpoint: Endpoint, repository: str, digest: str, artifact: Artifact) -> bool:
    """Puts an artifact beside the image with this digest in ``repository`` (``HOST/NAME``); False if it was there
    already. Raises TransferError where the registry does not take it."""
    with _conversation(endpoint, repository) as session:
        subject = _described(session, digest)
        empty = _descriptor(_EMPTY, _EMPTY_CONTENT)
        layers = [
            {**_descriptor(artifact.artifact_type, blob), "annotations": dict(artifact.annotations)}
            for blob in artifact.blobs
        ]
        manifest = _json(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "artifactType": artifact.artifact_type,
                "config": empty,
                "layers": layers,
                "subject": subject,
                "annotations": dict(artifact.annotations),
            }
        )
        own = _descriptor(_MANIFEST, manifest)
        listed = {
            **own,
            "artifactType": artifact.artifact_type,
            "annotations": dict(artifact.annotations),
        }
        if own["digest"] in {entry.get("digest") for entry in _listed(session, digest)}:
            return False
        for blob in (_EMPTY_CONTENT, *artifact.blobs):
            _put_blob(session, blob)
        answer = _put_manifest(session, own["digest"], _MANIFEST, manifest)
        if "OCI-Subject" not in answer.headers:
            _list_under_tag(session, digest, listed)
    return True


def attached(
    endpoint: Endpoint, repository: str, digest: str, artifact_type: str, annotations: Mapping[str, str], largest: int
) -> tuple[bytes, ...]:
    """The blobs of all artifacts of a type beside the image with this digest that have these annotations, each of
    ``largest`` bytes at most. Raises TransferError where they cannot be read, or are not what their digests say."""
    with _conversation(endpoint, repository) as session:
        blobs: dict[str, bytes] = {}
        wanted = [entry for entry in _listed(session, digest) if entry.get("artifactType") == artifact_type]
        for entry in wanted[-_MOST_ARTIFACTS:]:
            manifest = _parsed(_content(session, "manifests", oci_layout.descriptor(entry), _LARGEST_MANIFEST))
            if not _is_of(manifest, digest):
                continue
            for layer in manifest.get("layers") or ():
                if annotations.items() <= (layer.get("annotations") or {}).items():
                    described = oci_layout.descriptor(layer)
                    blobs[described.digest] = _content(session, "blobs", described, largest)
        return tuple(blobs.values())


@contextmanager
def _conversation(endpoint: Endpoint, repository: str) -> Iterator[RegistrySession]:
    """A conversation with a registry whose failures are TransferErrors."""
    failed = f"the evidence beside the images of {repository} cannot be had"
    try:
        with registry_session.opened(endpoint, repository, failed) as session:
            yield session
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise TransferError(f"{failed}: the registry's answer is not of its protocol", hint=HINT) from None


def _described(session: RegistrySession, digest: str) -> dict[str, Any]:
    """The descriptor of the image with this digest."""
    answer = _get(session, f"manifests/{digest}", _LARGEST_MANIFEST)
    if not answer.is_success:
        raise _refused(session, f"{digest} is not there", answer)
    _require_digest(session, answer.content, digest)
    kind = answer.headers.get("Content-Type", _MANIFEST).partition(";")[0]
    return _descriptor(kind, answer.content)


def _listed(session: RegistrySession, digest: str) -> list[dict[str, Any]]:
    """The descriptors of the artifacts beside an image."""
    answer = _get(session, f"referrers/{digest}", _LARGEST_MANIFEST)
    if answer.is_success and _INDEX in answer.headers.get("Content-Type", ""):
        return _entries(answer)
    answer = _get(session, f"manifests/{_tag_of(digest)}", _LARGEST_MANIFEST)
    if answer.status_code == _NOT_FOUND:
        return []
    if not answer.is_success:
        raise _refused(session, "what lies beside the image cannot be read", answer)
    return _entries(answer)


def _entries(answer: httpx2.Response) -> list[dict[str, Any]]:
    return [entry for entry in answer.json().get("manifests") or () if isinstance(entry, dict)]


def _list_under_tag(session: RegistrySession, digest: str, listed: dict[str, Any]) -> None:
    """Adds an artifact to the index under the tag of the image's digest. A tag cannot be set only if nobody changed it
    meanwhile: so it is read again afterwards."""
    tag = _tag_of(digest)
    for _ in range(_TRIES):
        answer = _get(session, f"manifests/{tag}", _LARGEST_MANIFEST)
        entries = _entries(answer) if answer.is_success else []
        if listed["digest"] in {entry.get("digest") for entry in entries}:
            return
        index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [*entries, listed]}
        _put_manifest(session, tag, _INDEX, _json(index))
    raise TransferError(f"the index {tag} of {session.repository} is changed by others all the time", hint="try again")


def _put_blob(session: RegistrySession, content: bytes) -> None:
    digest = _descriptor("", content)["digest"]
    if _send(session, "HEAD", f"blobs/{digest}").is_success:
        return
    begun = _send(session, "POST", "blobs/uploads/", content=b"")
    place = urljoin(f"{session.address}/v2/{session.path}/blobs/uploads/", begun.headers.get("Location", ""))
    if not begun.is_success or not session.is_within(place):
        raise _refused(session, "no blob is taken", begun)
    url = f"{place}{'&' if '?' in place else '?'}digest={digest}"
    headers = {"Content-Type": "application/octet-stream"}
    answer = session.send("PUT", url, largest=_LARGEST_ANSWER, content=content, headers=headers)
    if not answer.is_success:
        raise _refused(session, "a blob was not taken", answer)


def _put_manifest(session: RegistrySession, name: str, kind: str, content: bytes) -> httpx2.Response:
    answer = _send(session, "PUT", f"manifests/{name}", content=content, headers={"Content-Type": kind})
    if not answer.is_success:
        raise _refused(session, "an artifact is not taken", answer)
    return answer


def _content(session: RegistrySession, kind: str, described: Descriptor, largest: int) -> bytes:
    """The content of a manifest or blob. Raises TransferError for one that is too large, or is another."""
    if described.size > largest:
        raise TransferError(f"{described.digest} in {session.repository} is larger than what this program writes")
    answer = _get(session, f"{kind}/{described.digest}", largest)
    if not answer.is_success:
        raise _refused(session, f"{described.digest} cannot be read", answer)
    _require_digest(session, answer.content, described.digest)
    return answer.content


def _require_digest(session: RegistrySession, content: bytes, digest: str) -> None:
    if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
        raise TransferError(f"{session.repository} has other content under {digest}", hint=HINT)


def _is_of(manifest: Mapping[str, Any], digest: str) -> bool:
    return (manifest.get("subject") or {}).get("digest") == digest


def _get(session: RegistrySession, place: str, largest: int) -> httpx2.Response:
    url = f"{session.address}/v2/{session.path}/{place}"
    return session.send("GET", url, largest=largest, headers={"Accept": _ACCEPTED})


def _send(
    session: RegistrySession,
    method: str,
    place: str,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> httpx2.Response:
    url = f"{session.address}/v2/{session.path}/{place}"
    return session.send(method, url, largest=_LARGEST_ANSWER, content=content, headers=headers)


def _tag_of(digest: str) -> str:
    return digest.replace(":", "-")


def _descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return oci_layout.Descriptor(media_type, digest, len(content)).json


def _json(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()


def _parsed(content: bytes) -> dict[str, Any]:
    data = json.loads(content)
    if not isinstance(data, dict):
        raise TypeError("a manifest is a block of keys")
    return data


def _refused(session: RegistrySession, why: str, answer: httpx2.Response) -> TransferError:
    reason = http_client.status(answer)
    return TransferError(f"the registry with {session.repository} refused: {why} ({reason})", hint=HINT)

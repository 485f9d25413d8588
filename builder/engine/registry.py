"""Requests to a registry, with the user's login. The engine and buildx handle digests and copies. The engine has no
requests for tags, labels and sizes, so this module asks the registry for them:
https://github.com/opencontainers/distribution-spec/blob/main/spec.md and
https://distribution.github.io/distribution/spec/auth/token/"""

from __future__ import annotations

import base64
import ipaddress
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit

from builder.base import http_client, processes, records
from builder.base.errors import EngineError, SourceError, TransferError
from builder.base.values import dataclass
from builder.engine import archives, images, machine
from builder.engine.client import (
    Endpoint,
    EngineHTTPError,
    EngineTimeoutError,
    docker_configuration,
    quoted,
    request,
)

if TYPE_CHECKING:
    from builder.engine.archives import Descriptor, Receive


def credentials(reference: str) -> dict[str, str]:
    """Returns the user's login for the registry of ``reference`` from Docker's configuration; empty without a login.
    Raises SourceError if Docker's configuration or its credential helper cannot be read."""
    try:
        configuration = docker_configuration(os.environ)
    except EngineError as error:
        message = f"the login for the registry of {reference} cannot be read: {error.message}"
        raise SourceError(message, hint=error.hint) from None
    has_helper = configuration.get("credsStore") or configuration.get("credHelpers")
    host = images.with_registry(reference).removeprefix("index.").partition("/")[0]
    if not has_helper and host not in json.dumps(configuration.get("auths")):
        return {}  # importing the SDK takes 100 ms, a fifth of a small copy

    from docker import auth
    from docker.errors import DockerException

    try:
        registry, _ = auth.resolve_repository_name(reference)
        login = auth.load_config().resolve_authconfig(registry) or {}
    except (DockerException, ValueError, AttributeError) as error:  # the last two for a damaged login
        hint = "repair ~/.docker/config.json or its credential helper, or log in again: `docker login REGISTRY`"
        message = f"the login for the registry of {reference} cannot be read: {error}"
        raise SourceError(message, hint=hint) from None
    # Docker's file and its credential helpers use different case for the keys.
    return {key.lower(): value for key, value in login.items()}


def auth_headers(reference: str) -> dict[str, str]:
    """Returns the header with the `credentials` for the registry of ``reference``; empty without a login."""
    if not (login := credentials(reference)):
        return {}
    from docker import auth

    return {"X-Registry-Auth": auth.encode_header(login).decode()}


WAIT = 20.0  # seconds
_COPY_WAIT = 24 * 3600.0
HINT = "check the name, the network and your login (`docker login REGISTRY`), and that the registry runs"
_UNKNOWN = ("manifest unknown", "name unknown", "not found", "no such manifest")


def describe(endpoint: Endpoint, reference: str, wait: float) -> dict[str, Any]:
    """The descriptor and the platforms of ``reference`` in its registry. The engine asks, with its network, proxies
    and mirrors and the user's login, for at most ``wait`` seconds. Raises EngineHTTPError and EngineTimeoutError."""
    path = f"/distribution/{quoted(reference)}/json"
    answer: dict[str, Any] = request(endpoint, "GET", path, headers=auth_headers(reference), timeout=wait)
    return answer


def lacks_image(explanation: str) -> bool:
    """True if an engine's error says that the registry answered, and has no such image."""
    return any(word in explanation.lower() for word in _UNKNOWN)


def manifest_digest(endpoint: Endpoint, reference: str) -> str | None:
    """Returns the digest of ``reference`` in its registry; None if the image does not exist. Raises TransferError."""
    try:
        return str(describe(endpoint, reference, WAIT)["Descriptor"]["digest"])
    except EngineHTTPError as error:
        if lacks_image(error.explanation):
            return None
        message = f"the request to the registry for {reference} failed: {error.explanation}"
        raise TransferError(message, hint=HINT) from None
    except EngineTimeoutError:
        raise TransferError(f"the registry of {reference} has not answered for {WAIT:g} seconds", hint=HINT) from None


def copy_image(endpoint: Endpoint, source: str, target: str) -> None:
    """Copies an image with all its platforms from one registry to another. The digest stays the same. Existing layers
    are not sent again. Raises TransferError if the image cannot be read or written."""
    result = machine.query_buildx(
        endpoint, "imagetools", "create", "--prefer-index=false", "--tag", target, source, timeout=_COPY_WAIT
    )
    if result is None or result.returncode:
        lines = (result.stderr if result else "buildx did not start, or did not finish in time").strip().splitlines()
        why = lines[-1].removeprefix("ERROR: ") if lines else "buildx gave no reason"
        hint = "check that both registries answer, and that you are logged in to them (`docker login REGISTRY`)"
        raise TransferError(f"{source} was not copied to {target}: {why}", hint=hint)


# The tags of a registry, each with its day, labels and size.

_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(images.DIGEST)
_PAGE, _PAGES = 1000, 100
_LEVELS = 3  # an index, an index in it, and its manifests
_LARGEST = 8 << 20  # bytes: a list of tags, a manifest or an image's configuration
_SECONDS = 60.0
_AT_ONCE = 8
_SECTION, _LARGEST_CACHE = "described", 5000
_CERTIFICATES = Path("/etc/docker/certs.d")
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_ACCEPTED = {"accept": ", ".join((*archives.INDEX_TYPES, *_MANIFESTS, "*/*")), "accept-encoding": "identity"}
# The ends of labels in community images, such as `vllm-version` and `dev.arena.vllm.hash`.
_LABELS = {
    "vllm": re.compile(r"vllm[._-](?:version|ref)"),
    "vllm_commit": re.compile(r"vllm[._-](?:hash|commit|sha)"),
    "flashinfer": re.compile(r"flashinfer[._-](?:version|ref)"),
    "flashinfer_commit": re.compile(r"flashinfer[._-](?:hash|commit|sha)"),
    "commit": re.compile(r"repo[._-]commit|org\.opencontainers\.image\.revision"),
}


@dataclass(frozen=True)
class PublishedImage:
    """An image of a registry: the digest of its tag; the day in its tag, or else the day of its creation
    (``YYYY-MM-DD``, or empty); the values of its labels, by the keys of ``_LABELS``; and its packed size in bytes."""

    tag: str
    day: str
    digest: str
    labels: Mapping[str, str]
    size: int


def on_day(endpoint: Endpoint, reference: str) -> str:
    """Returns ``NAME:TAG``, with the last tag of the day, for ``NAME@DATE``; any other reference unchanged. Raises
    SourceError if the registry does not answer, or has no tag of that day."""
    name, day = images.split_day(reference)
    if not day:
        return reference
    dated = dated_tags(endpoint, name)
    if of_day := [tag for its_day, tag in dated if its_day == day]:
        return f"{name}:{of_day[-1]}"
    before, after = [tag for its_day, tag in dated if its_day < day], [tag for its_day, tag in dated if its_day > day]
    beside = [*before[-1:], *after[:1]]
    nearest = f"the nearest {'are' if len(beside) > 1 else 'is'} {' and '.join(beside)}"
    why = nearest if beside else "none of its tags has a date"
    raise SourceError(f"{name} has no image of {day}: {why}", hint=f"`builder bases {name}` lists its images")


def tags(endpoint: Endpoint, repository: str) -> tuple[str, ...]:
    """Returns all tags of ``repository`` in its registry. Raises SourceError if the registry cannot be read."""
    every: dict[str, None] = {}
    last = ""
    with _session(endpoint, repository) as session:
        for _ in range(_PAGES):
            answer = session.get("tags/list?" + urlencode({"n": _PAGE, **({"last": last} if last else {})}))
            listed = records.parse_json(answer.content).get("tags") or ()
            every |= dict.fromkeys(tag for tag in listed if _TAG.fullmatch(tag))
            # From the link, only the next position is used: the registry must not choose the next address.
            link = re.search(r"<([^>]*)>", answer.headers.get("link", ""))
            following = parse_qs(urlsplit(link[1]).query).get("last", [""])[0] if link else ""
            if not following or following == last:
                break
            last = following
    return tuple(every)


def dated_tags(endpoint: Endpoint, repository: str) -> list[tuple[str, str]]:
    """Returns the tags that have a day, as sorted pairs of day and tag. Raises SourceError as `tags` does."""
    return sorted((images.day_of(tag), tag) for tag in tags(endpoint, repository) if images.day_of(tag))


def digests(endpoint: Endpoint, repository: str, wanted: Iterable[str]) -> dict[str, str]:
    """Returns the digests of the tags ``wanted``, by tag. Docker Hub does not count these requests as pulls
    (https://docs.docker.com/docker-hub/usage/pulls/). Raises SourceError as `tags` does."""
    with _session(endpoint, repository) as session:
        return _digests(session, wanted)


def published(
    endpoint: Endpoint, repository: str, wanted: Iterable[str], platform: str, cache: Path
) -> tuple[PublishedImage, ...]:
    """Returns the images of the tags ``wanted`` for ``platform`` (``linux/arm64``); images for other platforms are left
    out. The file ``cache`` stores each description by digest, since Docker Hub counts each manifest as a pull. Raises
    SourceError as `tags` does."""
    section = f"{_SECTION} {platform}"
    cached = images.load_cache(cache).get(section, {})
    with _session(endpoint, repository) as session:
        by_tag = _digests(session, wanted)
        missing = [digest for digest in dict.fromkeys(by_tag.values()) if not isinstance(cached.get(digest), dict)]
        answers = processes.in_parallel(lambda each: (each, _described(session, each, platform)), missing, _AT_ONCE)
        read = {digest: about for digest, about in answers if about is not None}
        every = {**cached, **read}
        if read:
            images.store_cache(cache, section, every if len(every) < _LARGEST_CACHE else read)
        described = ((tag, digest, every[digest]) for tag, digest in by_tag.items() if every.get(digest))
        return tuple(
            PublishedImage(tag, images.day_of(tag) or about["day"], digest, about["labels"], about["size"])
            for tag, digest, about in described
        )


def manifest_fingerprint(endpoint: Endpoint, reference: str, platform: str) -> str:
    """Returns the fingerprint (`images.fingerprint`) of ``reference`` in its registry, from the image's configuration;
    empty if the image is not for ``platform``. Raises TransferError if the image cannot be read."""
    repository, version = images.split_tag(reference)
    names = {"Os": "os", "Architecture": "architecture", "Variant": "variant", "Created": "created", "Config": "config"}
    try:
        with _session(endpoint, repository) as session:
            _, configuration = _image(session, version, platform)
            if not configuration:
                return ""
            described = {key: configuration.get(name) for key, name in names.items()}
            layers = {"Layers": configuration["rootfs"]["diff_ids"]}
            return images.fingerprint(images.parse_details({**described, "Id": "", "RootFS": layers}))
    except SourceError as error:
        raise TransferError(error.message, hint=HINT) from None


def _digests(session: _RegistrySession, wanted: Iterable[str]) -> dict[str, str]:
    def ask(tag: str) -> tuple[str, str]:
        return tag, _digest({"digest": session.get(f"manifests/{tag}", "HEAD").headers["docker-content-digest"]})

    return dict(processes.in_parallel(ask, wanted, _AT_ONCE))


def _described(session: _RegistrySession, digest: str, platform: str) -> dict[str, Any] | None:
    """The day, labels and size of a `PublishedImage`; empty for an image for another platform. None for an image that
    the registry removed while its tag stayed: a push may bring it back."""
    try:
        manifest, configuration = _image(session, digest, platform)
    except _GoneError:
        return None
    written = sorted(((configuration.get("config") or {}).get("Labels") or {}).items())
    labels = {}
    for name, pattern in _LABELS.items():
        if values := [value for key, value in written if pattern.search(key) and value]:
            labels[name] = str(values[0])
    return configuration and {
        "day": images.day_of(str(configuration.get("created"))[:10]),
        "labels": labels,
        "size": sum({layer["digest"]: int(layer["size"]) for layer in manifest["layers"]}.values()),
    }


def _image(session: _RegistrySession, version: str, platform: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The manifest and the configuration (https://github.com/opencontainers/image-spec/blob/main/config.md) of a tag or
    digest for ``platform``; both are empty if the image is not for this platform."""
    manifest = records.parse_json(session.get(f"manifests/{version}").content)
    if isinstance(manifest.get("manifests"), list):
        entry = next((each for each in manifest["manifests"] if _is_for(each.get("platform"), platform)), None)
        if entry is None:
            return {}, {}
        manifest = records.parse_json(session.get(f"manifests/{_digest(entry)}").content)
    configuration = records.parse_json(session.get(f"blobs/{_digest(manifest['config'])}").content)
    return (manifest, configuration) if _is_for(configuration, platform) else ({}, {})


def _is_for(entry: Any, platform: str) -> bool:
    return isinstance(entry, dict) and [entry.get("os"), entry.get("architecture")] == platform.split("/")[:2]


def _digest(descriptor: Mapping[str, Any]) -> str:
    if not _DIGEST.fullmatch(digest := str(descriptor["digest"])):
        raise ValueError(digest)
    return digest


def download_image(
    endpoint: Endpoint, repository: str, digest: str, receive: Receive, levels: int = _LEVELS
) -> Descriptor:
    """Reads an image with all its platforms. ``receive`` gets each blob: its digest, its size and its pieces, always
    after the blobs that it refers to. ``receive`` need not read the pieces of a blob that it already has. Returns the
    image's descriptor. Raises SourceError as `tags` does, if a manifest has another digest, and for manifests on more
    than these ``levels``: a few nested indexes can name a manifest millions of times."""

    def pieces(blob: str) -> Iterator[bytes]:
        # Each blob gets a new token: a token expires after minutes, and a layer of some gigabytes takes longer.
        with _session(endpoint, repository) as own:
            yield from own.pieces(f"blobs/{blob}")

    with _session(endpoint, repository) as session:
        answer = session.get(f"manifests/{digest}")
        content = answer.content
        if f"sha256:{sha256(content).hexdigest()}" != digest:
            raise ValueError(digest)
        manifest = records.parse_json(content)
        if (entries := dict.fromkeys(map(_digest, manifest.get("manifests", ())))) and levels == 1:
            raise http_client.NoAnswerError(f"its indexes are nested on more than {_LEVELS} levels")
        for entry in entries:
            download_image(endpoint, repository, entry, receive, levels - 1)
        for blob in () if "manifests" in manifest else (manifest["config"], *manifest["layers"]):
            receive(_digest(blob), int(blob["size"]), pieces(blob["digest"]))
        receive(digest, len(content), iter([content]))
        kind = manifest.get("mediaType") or answer.headers["content-type"]
        return archives.Descriptor(str(kind), digest, len(content))


@dataclass(frozen=True)
class _RegistrySession:
    """GET requests to a registry about one repository, whose address is ``root``."""

    client: Any
    root: str
    headers: Mapping[str, str]

    def get(self, rest: str, method: str = "GET") -> Any:
        return _successful(_send(self.client, self.root + rest, self.headers, method), rest)

    def pieces(self, rest: str) -> Iterator[bytes]:
        with self.client.stream("GET", self.root + rest, headers=self.headers) as answer:
            yield from _successful(answer, rest).iter_bytes()


@contextmanager
def _session(endpoint: Endpoint, repository: str) -> Iterator[_RegistrySession]:
    """A session with the user's login. In the block, every failure is a SourceError."""
    host, _, path = images.with_registry(repository).partition("/")
    login = credentials(repository)
    secure, ca_file = _is_secure(endpoint, host), _CERTIFICATES / host / "ca.crt"
    server = "registry-1.docker.io" if host == "docker.io" else host
    root = f"{'https' if secure else 'http'}://{server}/v2/{path}/"
    try:
        with http_client.following(ca_file if secure and ca_file.is_file() else None) as client:
            first = _send(client, f"{root}tags/list?n=1", _ACCEPTED)
            authorization = _authorization(client, first, login, secure=secure) if first.status_code == 401 else ""
            yield _RegistrySession(
                client, root, _ACCEPTED | ({"authorization": authorization} if authorization else {})
            )
    except http_client.NoAnswerError as error:
        raise SourceError(f"the registry of {repository} cannot be read: {error}", hint=HINT) from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise SourceError(f"the server at {repository} does not behave like a registry", hint=HINT) from None


def _send(client: Any, url: str, headers: Mapping[str, str], method: str = "GET") -> Any:
    return http_client.send(client, method, url, largest=_LARGEST, seconds=_SECONDS, headers=headers)


class _GoneError(http_client.NoAnswerError):
    """The registry lacks a manifest or blob."""


def _successful(answer: Any, what: str) -> Any:
    if answer.status_code != 200:
        kind = _GoneError if answer.status_code == 404 else http_client.NoAnswerError
        raise kind(f"{what.partition('?')[0]}: {http_client.status(answer)}")
    return answer


def _authorization(client: Any, refused: Any, login: Mapping[str, str], *, secure: bool) -> str:
    """The header that the registry requires after it ``refused`` a request; empty without a login."""
    scheme, _, rest = refused.headers.get("www-authenticate", "").partition(" ")
    user, password = login.get("username", ""), login.get("password", "")
    basic = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}" if user else ""
    if scheme.lower() != "bearer":
        return basic
    parameters = dict(re.findall(r'(\w+)="([^"]*)"', rest))
    realm = parameters.pop("realm", "")
    if urlsplit(realm).scheme != "https" and secure:
        message = f"the registry asks for a login at `{realm}`, which is not an https address"
        raise http_client.NoAnswerError(message)
    parameters = {name: value for name, value in parameters.items() if name in {"service", "scope"}}
    url = f"{realm}{'&' if '?' in realm else '?'}{urlencode(parameters)}"
    try:
        answer = _successful(_send(client, url, {"authorization": basic} if basic else {}), "no token")
    except http_client.NoAnswerError as error:
        raise http_client.NoAnswerError(f"its login server {realm}: {error}") from None
    token = records.parse_json(answer.content)
    return f"Bearer {token.get('token') or token['access_token']}"


def _is_secure(endpoint: Endpoint, host: str) -> bool:
    """False if the engine uses no TLS for the registry: on this machine, and for ``insecure-registries``."""
    configuration = request(endpoint, "GET", "/info").get("RegistryConfig") or {}
    if index := (configuration.get("IndexConfigs") or {}).get(host):
        return bool(index.get("Secure", True))
    name = urlsplit(f"//{host}").hostname or ""
    with suppress(ValueError):
        address = ipaddress.ip_address("127.0.0.1" if name == "localhost" else name)
        return not any(address in ipaddress.ip_network(net) for net in configuration.get("InsecureRegistryCIDRs") or ())
    return True

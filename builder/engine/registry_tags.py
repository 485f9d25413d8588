"""The tags that a registry has of an image, and what it says of each: the day, the labels and the size. No image is
pulled for them, and the engine, which has no question of that kind, is asked for the way to the registry alone.

The requests are those of https://github.com/opencontainers/distribution-spec/blob/main/spec.md; the tokens, of
https://distribution.github.io/distribution/spec/auth/token/.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit

from builder.base import http_client
from builder.base.errors import SourceError
from builder.engine import images, registry
from builder.engine.client import request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from builder.engine.client import Endpoint

    Get = Callable[..., Any]

_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(images.DIGEST)
_PAGE, _PAGES = 1000, 100
_LARGEST = 8 << 20  # bytes: a list of tags, a manifest or an image's configuration
_SECONDS = 60.0
_AT_ONCE = 8
_SECTION, _LARGEST_CACHE = "published", 5000
_CERTIFICATES = Path("/etc/docker/certs.d")
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_HINT = "check the name and the network; a private registry needs `docker login`"


@dataclass(frozen=True)
class PublishedImage:
    """An image of a registry: the digest that its tag stands for, the day in its tag or else the day on which it was
    made (``YYYY-MM-DD``, empty where neither is known), its labels, and the size of each packed layer in bytes."""

    tag: str
    day: str
    digest: str
    labels: Mapping[str, str]
    layers: Mapping[str, int]

    @property
    def size(self) -> int:
        return sum(self.layers.values())


def on_day(endpoint: Endpoint, reference: str) -> str:
    """Returns ``NAME:TAG`` for ``NAME@DATE``: the last tag of that day. Any other reference is returned unchanged.
    Raises SourceError where the registry does not answer, and where it has no tag of that day."""
    name, day = images.split_day(reference)
    if not day:
        return reference
    dated = sorted((images.day_of(tag), tag) for tag in tags(endpoint, name) if images.day_of(tag))
    if of_day := [tag for its_day, tag in dated if its_day == day]:
        return f"{name}:{of_day[-1]}"
    nearest = [
        [tag for its_day, tag in dated if its_day < day][-1:],
        [tag for its_day, tag in dated if its_day > day][:1],
    ]
    beside = " and ".join(tag for side in nearest for tag in side)
    why = f"the nearest are {beside}" if beside else "none of its tags has a date"
    raise SourceError(f"{name} has no image of {day}: {why}", hint=f"`builder bases {name}` lists them")


def tags(endpoint: Endpoint, repository: str) -> tuple[str, ...]:
    """Returns all tags that a registry has of ``repository``. Raises SourceError where it cannot be read."""
    with _session(endpoint, repository) as get:
        return _tags(get)


def digests(endpoint: Endpoint, repository: str, wanted: Iterable[str]) -> dict[str, str]:
    """Returns the digests that the tags ``wanted`` stand for, by tag. Docker Hub does not count these requests as pulls
    (https://docs.docker.com/docker-hub/usage/pulls/). Raises SourceError as `tags` does."""
    with _session(endpoint, repository) as get:
        return _digests(get, wanted)


def published(
    endpoint: Endpoint, repository: str, wanted: Iterable[str], platform: str, cache: Path
) -> tuple[PublishedImage, ...]:
    """Reads what the registry says of the tags ``wanted``, for ``platform`` (``linux/arm64``); an image that is not for
    it is left out. What was read is remembered by its digest in the file ``cache``, since Docker Hub counts each
    manifest as a pull. Raises SourceError as `tags` does."""
    section = f"{_SECTION} {platform}"
    cached = images.load_cache(cache).get(section, {})
    with _session(endpoint, repository) as get, ThreadPoolExecutor(_AT_ONCE) as pool:
        by_tag = _digests(get, wanted)
        missing = [digest for digest in dict.fromkeys(by_tag.values()) if not isinstance(cached.get(digest), dict)]
        read = dict(zip(missing, pool.map(lambda digest: _described(get, digest, platform), missing), strict=True))
        every = {**cached, **read}
        if read:
            images.store_cache(cache, section, every if len(every) < _LARGEST_CACHE else read)
        described = ((tag, digest, every[digest]) for tag, digest in by_tag.items() if every[digest])
        return tuple(
            PublishedImage(
                tag,
                images.day_of(tag) or images.day_of(str(each["created"])[:10]),
                digest,
                dict(each["labels"]),
                {str(layer): int(size) for layer, size in each["layers"].items()},
            )
            for tag, digest, each in described
        )


def _digests(get: Get, wanted: Iterable[str]) -> dict[str, str]:
    names = tuple(wanted)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        heads = pool.map(lambda tag: get(f"manifests/{tag}", method="HEAD").headers["docker-content-digest"], names)
        return {tag: _digest({"digest": digest}) for tag, digest in zip(names, heads, strict=True)}


def _tags(get: Get) -> tuple[str, ...]:
    every: dict[str, None] = {}
    last = ""
    for _ in range(_PAGES):
        answer = get("tags/list?" + urlencode({"n": _PAGE, **({"last": last} if last else {})}))
        listed = answer.json().get("tags") or ()
        every |= dict.fromkeys(tag for tag in listed if _TAG.fullmatch(tag))
        # Only the place to go on is taken from the link: the registry chooses no address for us.
        link = re.search(r"<([^>]*)>", answer.headers.get("link", ""))
        following = parse_qs(urlsplit(link[1]).query).get("last", [""])[0] if link else ""
        if not following or following == last:
            break
        last = following
    return tuple(every)


def _described(get: Get, digest: str, platform: str) -> dict[str, Any]:
    """When an image was made, its labels and the sizes of its packed layers; empty for one of another platform."""
    manifest = get(f"manifests/{digest}").json()
    if isinstance(manifest.get("manifests"), list):
        entry = next((each for each in manifest["manifests"] if _platform(each.get("platform")) == platform), None)
        if entry is None:
            return {}
        manifest = get(f"manifests/{_digest(entry)}").json()
    configuration = get(f"blobs/{_digest(manifest['config'])}").json()
    if _platform(configuration) != platform:
        return {}
    labels = (configuration.get("config") or {}).get("Labels") or {}
    return {
        "created": str(configuration.get("created")),
        "labels": {str(key): str(value) for key, value in labels.items()},
        "layers": {_digest(layer): int(layer["size"]) for layer in manifest["layers"]},
    }


def _platform(entry: Any) -> str:
    return f"{entry.get('os')}/{entry.get('architecture')}" if isinstance(entry, dict) else ""


def _digest(descriptor: Mapping[str, Any]) -> str:
    if not _DIGEST.fullmatch(digest := str(descriptor["digest"])):
        raise ValueError(digest)
    return digest


@contextmanager
def _session(endpoint: Endpoint, repository: str) -> Iterator[Get]:
    """A way to GET what the registry has of ``repository``, with the user's login. In the block every failure is a
    SourceError."""
    host, _, path = images.with_registry(repository).partition("/")
    login = registry.credentials(repository)
    secure, ca_file = _is_secure(endpoint, host), _CERTIFICATES / host / "ca.crt"
    server = "registry-1.docker.io" if host == "docker.io" else host
    root = f"{'https' if secure else 'http'}://{server}/v2/{path}/"
    headers = {"accept": ", ".join((*_INDEXES, *_MANIFESTS, "*/*"))}
    try:
        with http_client.following(ca_file if secure and ca_file.is_file() else None) as client:

            def send(url: str, authorization: str = "", method: str = "GET") -> Any:
                sent = {**headers, **({"authorization": authorization} if authorization else {})}
                return http_client.send(client, method, url, largest=_LARGEST, seconds=_SECONDS, headers=sent)

            authorization = _authorization(send, send(f"{root}tags/list?n=1"), login, secure=secure)

            yield lambda rest, method="GET": _successful(send(root + rest, authorization, method), rest)
    except http_client.NoAnswerError as error:
        raise SourceError(f"the registry of {repository} cannot be read: {error}", hint=_HINT) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SourceError(f"the registry of {repository} gives an answer that is not a registry's") from None


def _successful(answer: Any, what: str) -> Any:
    if answer.status_code != 200:
        raise http_client.NoAnswerError(f"{what.partition('?')[0]}: {http_client.status(answer)}")
    return answer


def _authorization(send: Callable[..., Any], first: Any, login: Mapping[str, str], *, secure: bool) -> str:
    """The header that the registry wants, after its ``first`` answer without one; empty where it wants none."""
    if first.status_code != 401:
        return ""
    scheme, _, rest = first.headers.get("www-authenticate", "").partition(" ")
    user, password = login.get("username", ""), login.get("password", "")
    basic = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}" if user else ""
    if scheme.lower() != "bearer":
        return basic
    parameters = dict(re.findall(r'(\w+)="([^"]*)"', rest))
    realm = parameters.pop("realm", "")
    if urlsplit(realm).scheme != "https" and secure:
        raise http_client.NoAnswerError(f"it sends its visitors to {realm or 'nowhere'} for a token, not by https")
    parameters = {name: value for name, value in parameters.items() if name in {"service", "scope"}}
    token = _successful(send(f"{realm}{'&' if '?' in realm else '?'}{urlencode(parameters)}", basic), "a token").json()
    return f"Bearer {token.get('token') or token['access_token']}"


def _is_secure(endpoint: Endpoint, host: str) -> bool:
    """False where the engine speaks to the registry without TLS: on this machine, and where its configuration says so
    (``insecure-registries``)."""
    configuration = request(endpoint, "GET", "/info").get("RegistryConfig") or {}
    if index := (configuration.get("IndexConfigs") or {}).get(host):
        return bool(index.get("Secure", True))
    name = urlsplit(f"//{host}").hostname or ""
    with suppress(ValueError):
        address = ipaddress.ip_address("127.0.0.1" if name == "localhost" else name)
        return not any(address in ipaddress.ip_network(net) for net in configuration.get("InsecureRegistryCIDRs") or ())
    return True

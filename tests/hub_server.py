"""A hub for tests: the part of Hugging Face's API for inspecting and downloading models, over real HTTP, and ways to
make it fail.

It behaves like the real hub (known from answers in issues of huggingface_hub and of other clients, 2022 to 2026):

- ``/resolve/`` sends no content. It redirects a file in Git LFS to a signed address on another host (302), and any
  other file to ``/api/resolve-cache/`` on the same host (307).
- Text is sent compressed, without a length, and whole even if a part was requested.
- The answer for a model that does not exist is 401 without a token, and 404 with a token.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

# Files of at least this size are in Git LFS.
LARGE = 1000
STORE = "/xet-bridge-us/"
"""The path prefix on the host of large files. The SHA-256 of a file's content follows."""
_TEXT = (".json", ".jinja", ".md", ".txt")
Files = dict[str, bytes]


@dataclass
class Repo:
    """A model: the files of each commit, and the commit of each branch and tag. A gated model requires the token."""

    commits: dict[str, Files]
    refs: dict[str, str]
    gated: bool = False


@dataclass(frozen=True)
class HubRequest:
    """A received request to the hub or to the host of its large files."""

    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass
class Hub:
    """The state of a hub. ``break_after`` ends the connection once after that many bytes of a large file.
    ``stall_after`` stops sending there (``stalled``) until the hub is ``over``. ``changes`` replaces the content sent
    for a file, ``claims`` the length in the listing. With ``hides_ids``, the listing has ids of large files only, as a
    mirror may do. ``store`` is the address of the other host, ``stored`` its files by SHA-256."""

    repos: dict[str, Repo] = field(default_factory=dict)
    token: str = ""
    url: str = ""
    break_after: int | None = None
    stall_after: int | None = None
    status: int = 0
    hides_ids: bool = False
    changes: Files = field(default_factory=dict)
    claims: dict[str, int] = field(default_factory=dict)
    requests: list[HubRequest] = field(default_factory=list)
    store: str = ""
    stored: Files = field(default_factory=dict)
    stalled: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def add(self, model: str, files: Files, *, ref: str = "main", gated: bool = False) -> str:
        """Adds a commit to ``model``, lets ``ref`` name it, and returns it."""
        repo = self.repos.setdefault(model, Repo({}, {}, gated))
        commit = hashlib.sha1(f"{model} {len(repo.commits)}".encode()).hexdigest()  # noqa: S324
        repo.commits[commit] = files
        repo.refs[ref] = commit
        return commit

    def got(self, name: str) -> list[str | None]:
        """The ranges in which a file was requested (None: the whole file)."""
        return [
            request.range
            for request in self.requests
            if request.method == "GET" and "/resolve/" in request.path and request.path.endswith(f"/{name}")
        ]


@contextmanager
def serve() -> Iterator[Hub]:
    """Runs a hub on a free port of this machine until the block ends."""
    hub = Hub()
    with _listening(_Handler, hub) as hub.url, _listening(_StoreHandler, hub) as hub.store:
        try:
            yield hub
        finally:
            hub.over.set()


@contextmanager
def _listening(kind: type[_Handler], hub: Hub) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (kind,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self) -> None:
        path = self._noted()
        authorization = self.headers.get("Authorization")
        listing = re.fullmatch(r"/api/models/(.+)/revision/(.+)", path)
        cached = re.fullmatch(r"/api/resolve-cache/models/([^/]+/[^/]+)/([^/]+)/(.+)", path)
        file = re.fullmatch(r"/(.+)/resolve/([^/]+)/(.+)", path)
        match = listing or cached or file
        repo = self.hub.repos.get(match[1]) if match else None
        commit = repo.refs.get(match[2], match[2]) if repo and match else ""
        if self.hub.status:
            self._send(self.hub.status, b"out of order")
        elif authorization and authorization != f"Bearer {self.hub.token}":
            self._send(401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif repo is None or match is None:
            self._send(*((404, b"", {"X-Error-Code": "RepoNotFound"}) if authorization else _WHO))
        elif repo.gated and file and not authorization:
            self._send(401, b"", {"X-Error-Code": "GatedRepo"})
        elif commit not in repo.commits:
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif listing:
            self._list(match[1], commit, repo.commits[commit])
        elif match[3] not in repo.commits[commit]:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        elif cached:
            self._small(commit, match[3], repo.commits[commit][match[3]])
        else:
            self._redirect(match[1], commit, match[3], repo.commits[commit][match[3]])

    def _noted(self) -> str:
        """Records the request, and returns its path."""
        path = unquote(urlsplit(self.path).path)
        said = self.headers.get("Range"), self.headers.get("Authorization")
        self.hub.requests.append(HubRequest(self.command, path, *said))
        return path

    def _list(self, model: str, commit: str, files: Files) -> None:
        siblings = []
        for name, content in files.items():
            size = self.hub.claims.get(name, len(content))
            is_large = len(content) >= LARGE
            # The content that git stores for a file in Git LFS
            # (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md).
            pointer = (
                f"version https://git-lfs.github.com/spec/v1\noid sha256:{_sha256(content)}\nsize {size}\n".encode()
            )
            lfs = {"sha256": _sha256(content), "size": size, "pointerSize": len(pointer)}
            blob = {} if self.hub.hides_ids else {"blobId": _git_id(pointer if is_large else content)}
            siblings.append({"rfilename": name, "size": size, **blob, **({"lfs": lfs} if is_large else {})})
        self._send(200, json.dumps({"id": model, "sha": commit, "siblings": siblings}).encode())

    def _redirect(self, model: str, commit: str, name: str, content: bytes) -> None:
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if len(content) >= LARGE:
            sha256 = _sha256(content)
            self.hub.stored[sha256] = self.hub.changes.get(name, content)
            linked = {"X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{sha256}"'}
            self._send(302, b"", {**headers, **linked, "Location": f"{self.hub.store}{STORE}{sha256}?Signature=x"})
        else:
            place = f"/api/resolve-cache/models/{model}/{commit}/{quote(name)}"
            self._send(307, b"", {**headers, "ETag": f'"{_git_id(content)}"', "Location": place})

    def _small(self, commit: str, name: str, content: bytes) -> None:
        headers = {"X-Repo-Commit": commit, "ETag": f'"{_git_id(content)}"'}
        content = self.hub.changes.get(name, content)
        if name.endswith(_TEXT) and "gzip" in self.headers.get("Accept-Encoding", ""):
            packed = gzip.compress(content)
            chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(packed), packed)
            self._send(200, chunks, {**headers, "Content-Encoding": "gzip", "Transfer-Encoding": "chunked"})
        else:
            status, part, more = self._part(content)
            self._send(status, part, {**headers, **more})

    def _part(self, content: bytes) -> tuple[int, bytes, dict[str, str]]:
        """The answer with the requested part of ``content``."""
        wanted = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not wanted:
            return 200, content, {}
        start, end = int(wanted[1]), min(int(wanted[2] or len(content)) + 1, len(content))
        if start >= end:
            return 416, b"", {"Content-Range": f"bytes */{len(content)}"}
        return 206, content[start:end], {"Content-Range": f"bytes {start}-{end - 1}/{len(content)}"}

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        headers = headers or {}
        self.send_response(status)
        length = {} if "Transfer-Encoding" in headers else {"Content-Length": str(len(body))}
        for name, value in {**length, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if body and self.command != "HEAD":
            self._write(body)

    def _write(self, body: bytes) -> None:
        self.wfile.write(body)


class _StoreHandler(_Handler):
    """The other host, which has the large files. The signature in an address counts as a login."""

    def _answer(self) -> None:
        sha256 = self._noted().removeprefix(STORE)
        if self.headers.get("Authorization"):
            self._send(400, b"Only one auth mechanism allowed")
        else:
            self._send(*self._part(self.hub.stored[sha256]))

    def _write(self, body: bytes) -> None:
        if self.hub.stall_after is not None:
            self.wfile.write(body[: self.hub.stall_after])
            self.wfile.flush()
            self.hub.stalled.set()
            self.hub.over.wait(600)
            self.close_connection = True
        elif self.hub.break_after is not None:
            self.wfile.write(body[: self.hub.break_after])
            self.hub.break_after = None
            self.close_connection = True
        else:
            self.wfile.write(body)


_WHO = 401, b'{"error":"Invalid username or password."}', {"X-Error-Message": "Invalid username or password."}


def _git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # noqa: S324


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

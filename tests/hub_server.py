"""A hub for tests: the part of Hugging Face's API by which models are looked at and downloaded, over real HTTP, and
ways to make it fail."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

# Files from here on are in Git LFS.
LARGE = 1000
Files = dict[str, bytes]


@dataclass
class Repo:
    """A model: the files of each commit, and the commit of each branch and tag. A gated one wants the hub's token."""

    commits: dict[str, Files]
    refs: dict[str, str]
    gated: bool = False


@dataclass(frozen=True)
class HubRequest:
    """A request as it came in."""

    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass
class Hub:
    """``break_after`` ends the connection once after so many bytes of a large file; ``stall_after`` goes silent there
    (``stalled``), until it is ``over``. ``changes`` replaces what is sent of a file, ``claims`` the length that the
    listing says it has. With ``hides_ids`` it lists the contents of large files alone, as a mirror may."""

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
    stalled: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def add(self, model: str, files: Files, *, ref: str = "main", gated: bool = False) -> str:
        """A further commit of ``model``, which ``ref`` leads to from now on; returns it."""
        repo = self.repos.setdefault(model, Repo({}, {}, gated))
        commit = hashlib.sha1(f"{model} {len(repo.commits)}".encode()).hexdigest()  # noqa: S324
        repo.commits[commit] = files
        repo.refs[ref] = commit
        return commit

    def got(self, name: str) -> list[str | None]:
        """The ranges in which a file was asked for, None for the whole."""
        return [
            request.range for request in self.requests if request.method == "GET" and request.path.endswith(f"/{name}")
        ]


@contextmanager
def serve() -> Iterator[Hub]:
    """A hub on a free port of this machine until the block ends."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        hub.over.set()
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
        path = unquote(urlsplit(self.path).path)
        authorization = self.headers.get("Authorization")
        self.hub.requests.append(HubRequest(self.command, path, self.headers.get("Range"), authorization))
        listing = re.fullmatch(r"/api/models/(.+)/revision/(.+)", path)
        file = re.fullmatch(r"/(.+)/resolve/([^/]+)/(.+)", path)
        match = listing or file
        repo = self.hub.repos.get(match[1]) if match else None
        commit = repo.refs.get(match[2], match[2]) if repo and match else ""
        if self.hub.status:
            self._send(self.hub.status, b"out of order")
        elif authorization and authorization != f"Bearer {self.hub.token}":
            self._send(401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif repo is None or match is None:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif repo.gated and file and not authorization:
            self._send(401, b"", {"X-Error-Code": "GatedRepo"})
        elif commit not in repo.commits:
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif file:
            self._file(commit, file[3], repo.commits[commit])
        else:
            self._list(match[1], commit, repo.commits[commit])

    def _list(self, model: str, commit: str, files: Files) -> None:
        siblings = []
        for name, content in files.items():
            size = self.hub.claims.get(name, len(content))
            lfs = {"sha256": _sha256(content), "size": size, "pointerSize": 134}
            large = {"lfs": lfs} if len(content) >= LARGE else {}
            blob = {} if self.hub.hides_ids else {"blobId": _git_id(content)}
            siblings.append({"rfilename": name, "size": size, **blob, **large})
        self._send(200, json.dumps({"id": model, "sha": commit, "siblings": siblings}).encode())

    def _file(self, commit: str, name: str, files: Files) -> None:
        if name not in files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        content = self.hub.changes.get(name, files[name])
        tag = _sha256(files[name]) if len(files[name]) >= LARGE else _git_id(files[name])
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        wanted = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start = int(wanted[1]) if wanted else 0
        end = min(int(wanted[2]) + 1, len(content)) if wanted and wanted[2] else len(content)
        is_part = bool(start) or end < len(content)
        if is_part:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
        self._send(206 if is_part else 200, content[start:end], headers, large=end - start >= LARGE)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, *, large: bool = False) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if large and self.hub.stall_after is not None:
            self.wfile.write(body[: self.hub.stall_after])
            self.wfile.flush()
            self.hub.stalled.set()
            self.hub.over.wait(60)
            self.close_connection = True
        elif large and self.hub.break_after is not None:
            self.wfile.write(body[: self.hub.break_after])
            self.hub.break_after = None
            self.close_connection = True
        else:
            self.wfile.write(body)


def _git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # noqa: S324


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

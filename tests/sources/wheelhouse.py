"""Small real wheels and package indexes of them, on disk and behind a server, for uv to resolve from."""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    tag: str = "py3-none-any",
    requires: tuple[str, ...] = (),
    files: Mapping[str, str] | None = None,
) -> Path:
    """A wheel with nothing but its metadata, and ``files``."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{stem}-{tag}.whl"
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    with zipfile.ZipFile(path, "w") as archive:
        info = f"{stem}.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
        for file, text in (files or {}).items():
            archive.writestr(file, text)
    return path


def make_index(folder: Path, wheels: list[Path]) -> str:
    """A simple index (PEP 503) of ``wheels``, as a file: address."""
    names = sorted({wheel.name.split("-")[0].replace("_", "-") for wheel in wheels})
    for name in names:
        own = [wheel for wheel in wheels if wheel.name.split("-")[0].replace("_", "-") == name]
        links = "".join(f'<a href="{wheel.as_uri()}#sha256={sha256(wheel)}">{wheel.name}</a>\n' for wheel in own)
        page = folder / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"<!DOCTYPE html><html><body>\n{links}</body></html>\n", encoding="utf-8")
    return folder.as_uri()


def make_commit_index(folder: Path, wheels: list[Path]) -> None:
    """The index of one commit's wheels, which lie in ``folder`` itself, for the variant ``cu130``: as vLLM publishes
    it (.buildkite/scripts/generate-nightly-index.py there), with relative links and without hashes."""
    links = "".join(f'    <a href="../../{quote(wheel.name)}">{wheel.name}</a><br/>\n' for wheel in wheels)
    page = folder / "cu130/vllm/index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f"<!DOCTYPE html>\n<html>\n  <body>\n{links}  </body>\n</html>\n", encoding="utf-8")


def make_dated_index(folder: Path, uploads: Mapping[Path, str]) -> None:
    """A simple index (PEP 691, 700) in ``folder``/simple of wheels that lie in ``folder``, each with the time of its
    upload (RFC 3339; empty where it is not told), to be served with them."""
    pages: dict[str, list[dict[str, object]]] = {}
    for wheel, time in uploads.items():
        file: dict[str, object] = {"filename": wheel.name, "url": f"../../{wheel.name}"}
        file |= {"hashes": {"sha256": sha256(wheel)}, **({"upload-time": time} if time else {})}
        pages.setdefault(wheel.name.split("-")[0].replace("_", "-"), []).append(file)
    for name, files in pages.items():
        page = folder / "simple" / name / "index.json"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(json.dumps({"meta": {"api-version": "1.1"}, "name": name, "files": files}), encoding="utf-8")


_CONTENT_TYPES = {".html": "text/html", ".json": "application/vnd.pypi.simple.v1+json"}


@dataclass(frozen=True)
class Served:
    """A folder behind a server that knows ranges: its address, and how many bytes went out each time."""

    url: str
    sent: list[int] = field(default_factory=list)


@contextmanager
def serving(folder: Path, tls: tuple[Path, Path] | None = None, host: str = "127.0.0.1") -> Iterator[Served]:
    """Serves ``folder`` on a free port of this machine, at its address ``host``, until the block ends, with the
    certificate and key of ``tls`` for the name localhost."""
    sent: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            part = self._answer()
            sent.append(len(part))
            self.wfile.write(part)

        def _answer(self) -> bytes:
            path = folder / unquote(self.path).lstrip("/")
            if path.is_dir():
                path = path / ("index.json" if (path / "index.json").is_file() else "index.html")
            data = path.read_bytes() if path.is_file() else b""
            requested = self.headers["Range"]
            if requested:
                first, last = map(int, requested.removeprefix("bytes=").split("-"))
                data = data[first : last + 1]
            self.send_response(206 if requested else 200 if path.is_file() else 404)
            self.send_header("Content-Type", _CONTENT_TYPES.get(path.suffix, "application/octet-stream"))
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            return data

    server = ThreadingHTTPServer((host, 0), Handler)
    url = f"http://{host}:{server.server_port}"
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        url = f"https://localhost:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield Served(url, sent)
    finally:
        server.shutdown()
        server.server_close()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_simple_index(folder: Path) -> None:
    """A simple index (PEP 503) in ``folder``/simple of the wheels that lie in ``folder``, to be served with them."""
    for wheel in folder.glob("*.whl"):
        page = folder / "simple" / wheel.name.split("-")[0].replace("_", "-") / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        same = sorted(other for other in folder.glob("*.whl") if other.name.split("-")[0] == wheel.name.split("-")[0])
        links = "".join(f'<a href="../../{other.name}#sha256={sha256(other)}">{other.name}</a>\n' for other in same)
        page.write_text(f"<!DOCTYPE html><html><body>\n{links}</body></html>\n", encoding="utf-8")

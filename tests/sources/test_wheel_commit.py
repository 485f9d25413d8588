from __future__ import annotations

import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from builder.errors import SourceError
from builder.sources import wheel_commit

VERSION = "__version__ = version = '0.19.1'\n__commit_id__ = commit_id = {commit}\n"


def make(folder: Path, commit: str) -> Path:
    path = folder / "vllm-0.19.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("vllm/kernels.so", b"\0" * 1_000_000)
        archive.writestr("vllm/_version.py", VERSION.format(commit=commit))
        archive.writestr("vllm/third_party/_version.py", VERSION.format(commit="'gffffffff'"))
    return path


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, list[int]]]:
    """The address of a folder behind a server that knows ranges, and how many bytes it sent each time."""
    sent: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_HEAD(self) -> None:
            path = tmp_path / self.path.lstrip("/")
            self.send_response(200 if path.is_file() else 404)
            self.send_header("Content-Length", str(path.stat().st_size if path.is_file() else 0))
            self.end_headers()

        def do_GET(self) -> None:
            data = (tmp_path / self.path.lstrip("/")).read_bytes()
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            part = data[first : last + 1]
            sent.append(len(part))
            self.send_response(206)
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            self.wfile.write(part)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", sent
    server.shutdown()
    server.server_close()


def test_the_commit_is_read_without_the_whole_wheel(tmp_path: Path, served: tuple[str, list[int]]) -> None:
    address, sent = served
    wheel = make(tmp_path, "'gb1388b1fb'")
    assert wheel_commit.read(f"{address}/{wheel.name}", None) == "b1388b1fb"
    assert sum(sent) < wheel.stat().st_size / 4


@pytest.mark.parametrize(("commit", "found"), [("'gb1388b1fb'", "b1388b1fb"), ("None", None)])
def test_a_local_wheel_is_read_as_well(tmp_path: Path, commit: str, found: str | None) -> None:
    assert wheel_commit.read(make(tmp_path, commit).as_uri(), None) == found


def test_what_is_no_wheel_is_said(tmp_path: Path, served: tuple[str, list[int]]) -> None:
    (tmp_path / "x.whl").write_bytes(b"not a zip file")
    for address in (f"{served[0]}/x.whl", f"{served[0]}/none.whl", (tmp_path / "none.whl").as_uri()):
        with pytest.raises(SourceError, match="cannot be read"):
            wheel_commit.read(address, None)

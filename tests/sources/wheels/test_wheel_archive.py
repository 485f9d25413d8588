from __future__ import annotations

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from builder.errors import SourceError
from builder.sources.wheels import wheel_archive
from tests.sources.wheelhouse import make_wheel, serving

if TYPE_CHECKING:
    from pathlib import Path


def test_files_are_read_by_one_connection_or_from_the_disk(tmp_path: Path) -> None:
    made = make_wheel(tmp_path, "toy", "1.0", files={"toy/a.py": "a\n"})
    with serving(tmp_path) as served:
        for address in (f"{served.url}/{made.name}", made.as_uri()):
            with wheel_archive.open_wheel(address, None) as archive:
                assert archive.read("toy/a.py") == b"a\n"


def test_a_server_that_knows_no_ranges_is_not_asked_for_the_whole_wheel(tmp_path: Path) -> None:
    made = make_wheel(tmp_path, "toy", "1.0")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/{made.name}"
    try:
        with (
            pytest.raises(SourceError, match="cannot be read: the server sends whole files only"),
            wheel_archive.open_wheel(address, None),
        ):
            pass
    finally:
        server.shutdown()
        server.server_close()


def test_a_server_that_is_not_there_is_said(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        gone = f"{served.url}/toy.whl"
    said = r"the wheel http://127\.0\.0\.1:\d+/toy\.whl cannot be read: .*refused"
    with pytest.raises(SourceError, match=said), wheel_archive.open_wheel(gone, None):
        pass

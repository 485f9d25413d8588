"""A hub that accepts a connection and then falls silent ends with an error."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from builder.base import http_client
from builder.base.errors import SourceError
from builder.sources import hub

_COMMIT = "a" * 40
_BEGUN = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 100\r\n\r\nabc"


@contextmanager
def _silent_after(begun: bytes) -> Iterator[dict[str, str]]:
    """The environment for a hub that sends ``begun`` to each connection, and no more."""
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    kept.append(server.accept()[0])
                    kept[-1].sendall(begun)

        threading.Thread(target=accept, daemon=True).start()
        yield {"HF_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}", "HF_TOKEN": "hf_none"}
        server.shutdown(socket.SHUT_RDWR)
        for connection in kept:
            connection.close()


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "PIECE_SECONDS", 0.5)


@pytest.mark.timeout(300)
def test_a_look_up_ends() -> None:
    with _silent_after(b"") as environ, pytest.raises(SourceError, match="does not answer: .*timed out") as caught:
        hub.find_snapshot(environ, "test/model", "main")
    assert "check the network, HTTPS_PROXY and HF_ENDPOINT" in str(caught.value.hint)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("begun", [b"", _BEGUN], ids=["nothing", "a part"])
def test_the_read_of_a_part_of_a_file_ends(begun: bytes) -> None:
    snapshot = hub.Snapshot("test/model", "main", _COMMIT, ())
    with _silent_after(begun) as environ, pytest.raises(SourceError, match="does not answer: .*timed out"):
        hub.read_file_range(environ, snapshot, "model.safetensors", 0, 100)

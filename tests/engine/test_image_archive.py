"""Images as archives that the engine loads and saves."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from builder.engine import image_archive
from builder.engine.registry import oci_layout
from builder.errors import TransferError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.engine.client.endpoint import Endpoint
    from tests.engine.conftest import Build

pytestmark = pytest.mark.engine


def test_an_archive_that_is_none(endpoint: Endpoint) -> None:
    with pytest.raises(TransferError, match="the engine did not load the image: "):
        image_archive.load(endpoint, 5, [b"not", b" a"])


def test_an_error_in_the_pieces_ends_the_load(endpoint: Endpoint) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"a"
        raise ValueError("the file broke off")

    with pytest.raises(ValueError, match="the file broke off"):
        image_archive.load(endpoint, 5, pieces())


def test_every_blob_is_saved(endpoint: Endpoint, repository: str, build: Build) -> None:
    build(f"{repository}:1", "FROM scratch\nCOPY file /\n", files={"file": "content"})
    blobs: dict[str, bytes] = {}
    sent: list[int] = []

    def receive(digest: str, size: int, pieces: Iterator[bytes]) -> None:
        blobs[digest] = b"".join(pieces)
        assert len(blobs[digest]) == size

    top, image = image_archive.save(endpoint, f"{repository}:1", receive, sent.append)
    assert all(digest == f"sha256:{sha256(content).hexdigest()}" for digest, content in blobs.items())
    read, sizes = oci_layout.read_image(top, blobs.__getitem__)
    assert image == read
    assert set(blobs) == set(sizes)
    assert sent == sorted(sent)
    assert sent[-1] > sum(map(len, blobs.values()))

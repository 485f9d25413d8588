"""Images as archives that the engine loads and saves."""

from __future__ import annotations

import io
import json
import tarfile
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from builder.base import words
from builder.base.errors import TransferError
from builder.engine import archives
from builder.engine.client import Endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.engine.conftest import Build


@pytest.mark.engine
def test_an_archive_that_is_none(endpoint: Endpoint) -> None:
    with pytest.raises(TransferError, match="the engine did not load the image: "):
        archives.load_archive(endpoint, 5, [b"not", b" a"])


@pytest.mark.engine
def test_an_error_in_the_pieces_ends_the_load(endpoint: Endpoint) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"a"
        raise ValueError("the file broke off")

    with pytest.raises(ValueError, match="the file broke off"):
        archives.load_archive(endpoint, 5, pieces())


@pytest.mark.engine
def test_every_blob_is_saved(endpoint: Endpoint, repository: str, build: Build) -> None:
    build(f"{repository}:1", "FROM scratch\nCOPY file /\n", files={"file": "content"})
    blobs: dict[str, bytes] = {}
    sent: list[int] = []

    def receive(digest: str, size: int, pieces: Iterator[bytes]) -> None:
        blobs[digest] = b"".join(pieces)
        assert len(blobs[digest]) == size

    top, image = archives.save_archive(endpoint, f"{repository}:1", receive, sent.append)
    assert all(digest == f"sha256:{sha256(content).hexdigest()}" for digest, content in blobs.items())
    read, sizes = archives.read_image(top, blobs.__getitem__)
    assert image == read
    assert set(blobs) == set(sizes)
    assert sent == sorted(sent)
    assert sent[-1] > sum(map(len, blobs.values()))


LAYERS = [bytes([n]) * 3000 for n in range(2)]


def descriptor(content: bytes, kind: str = "x") -> dict[str, object]:
    return archives.Descriptor(kind, f"sha256:{sha256(content).hexdigest()}", len(content)).json


def save(monkeypatch: pytest.MonkeyPatch, *layers: bytes) -> list[str]:
    """The digests that are saved of an image of LAYERS where the engine's archive has these ``layers``."""
    config = b"{}"
    manifest = json.dumps({"config": descriptor(config), "layers": [descriptor(layer) for layer in LAYERS]}).encode()
    files = {f"blobs/sha256/{sha256(blob).hexdigest()}": blob for blob in (*layers, config, manifest)}
    files["index.json"] = json.dumps({"manifests": [descriptor(manifest)]}).encode()
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, blob in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(blob)
            archive.addfile(info, io.BytesIO(blob))
    monkeypatch.setattr(archives, "stream", lambda *_, **__: iter([content.getvalue()]))
    monkeypatch.setattr(archives, "_LARGEST_MANIFEST", 2000)
    saved: list[str] = []
    endpoint = Endpoint("unix:///none", ("buildx",), "none")
    archives.save_archive(endpoint, "x:1", lambda digest, *_: saved.append(digest), lambda _: None)
    return saved


def test_exactly_the_blobs_of_the_image_are_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(set(save(monkeypatch, *LAYERS))) == len(LAYERS) + 2
    with pytest.raises(ValueError, match=f"lacks {descriptor(LAYERS[1])['digest']}"):
        save(monkeypatch, LAYERS[0])
    more = bytes(4000)
    with pytest.raises(ValueError, match=f"lacks {descriptor(more)['digest']}, or its manifest does not"):
        save(monkeypatch, *LAYERS, more)


def test_a_folder_of_images_has_each_blob_once_and_no_other_content(tmp_path: Path) -> None:
    layer = b"a layer"
    of_layer = words.sha256_of(layer)
    blob = {"mediaType": "x", "digest": of_layer, "size": len(layer)}
    content = json.dumps({"config": blob, "layers": [blob]}).encode()
    digest = words.sha256_of(content)
    top = archives.Descriptor("application/vnd.oci.image.manifest.v1+json", digest, len(content))
    with pytest.raises(TransferError, match="does not match"):
        archives.store_blob(tmp_path, digest, len(content), [b"something else"])
    assert not archives.folder_has(tmp_path, digest)
    archives.store_blob(tmp_path, digest, len(content), [content[:6], content[6:]])
    archives.store_blob(tmp_path, digest, len(content), iter(()))  # it is there: nothing is read
    assert not archives.folder_has(tmp_path, digest)
    archives.store_blob(tmp_path, of_layer, len(layer), [layer])
    assert archives.folder_has(tmp_path, digest)
    # Somebody's copy of the folder was cut off: the whole blob is stored again.
    (tmp_path / archives.blob_name(of_layer)).write_bytes(layer[:3])
    assert not archives.folder_has(tmp_path, digest)
    archives.store_blob(tmp_path, of_layer, len(layer), [layer])
    assert archives.folder_has(tmp_path, digest)
    for name in ("keeper/nightly:1", "keeper/nightly:2"):
        archives.name_image(tmp_path, top, name)
    (entry,) = json.loads((tmp_path / archives.INDEX).read_text(encoding="utf-8"))["manifests"]
    assert entry["annotations"] == {"org.opencontainers.image.ref.name": "keeper/nightly:2"}
    assert not archives.folder_has(tmp_path, "sha256:../../../etc/passwd")
    (tmp_path / "file").touch()
    with pytest.raises(TransferError, match="file/blobs/sha256 cannot be created: Not a directory"):
        archives.store_blob(tmp_path / "file", digest, len(content), [content])

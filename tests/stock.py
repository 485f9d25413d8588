"""Numbered images without builds: a few files are loaded into the engine, and a lock records the images."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence

from builder.base.project import Project
from builder.engine import client, images
from builder.engine.client import Endpoint
from builder.lock.model import ImageName, Lock, NumberedImage, Pairing
from builder.lock.text import dump_lock

Files = Mapping[str, bytes]

BUILT = "2026-11-20T12:{:02}:00Z"
BASE: Files = {"base": b"what all of them share\n" * 1000}


def load(
    endpoint: Endpoint,
    name: str,
    layers: Sequence[Files],
    labels: Mapping[str, str] | None = None,
    pack: Callable[[bytes], bytes] = bytes,
) -> None:
    """Loads an image with one layer for each of ``layers``; the same content, packed alike, gives the same image."""
    _load(endpoint, {name: (layers, labels or {})}, pack)


def _load(
    endpoint: Endpoint,
    made: Mapping[str, tuple[Sequence[Files], Mapping[str, str]]],
    pack: Callable[[bytes], bytes] = bytes,
) -> None:
    """Loads images by their names, each of its layers and labels, in one archive."""
    files: dict[str, bytes] = {}
    manifest = []
    for number, (name, (layers, labels)) in enumerate(made.items()):
        packed = [_tar(layer) for layer in layers]
        digests = [hashlib.sha256(layer).hexdigest() for layer in packed]
        config = {
            "architecture": "amd64",
            "os": "linux",
            "created": "1980-01-01T00:00:00Z",
            "config": {"Labels": dict(labels), "Cmd": ["/none"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
            "history": [{"created_by": f"COPY {n}"} for n in range(len(packed))]
            + [{"created_by": "LABEL x=y", "empty_layer": True}],
        }
        files |= {f"{digest}.tar": pack(layer) for digest, layer in zip(digests, packed, strict=True)}
        files[f"{number}.json"] = json.dumps(config).encode()
        names = [f"{digest}.tar" for digest in digests]
        manifest.append({"Config": f"{number}.json", "RepoTags": [name], "Layers": names})
    archive = _tar({**files, "manifest.json": json.dumps(manifest).encode()})
    status, answer = client.upload(endpoint, "/images/load?quiet=1", len(archive), [archive], 60)
    assert status == 200, answer
    assert b"errorDetail" not in answer, answer


def _tar(files: Files) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def labels(repository: str, number: int) -> dict[str, str]:
    """The labels that a build would give its image."""
    return {
        "org.opencontainers.image.title": repository,
        "builder.definition": "small",
        "builder.input-hash": f"sha256:{number:064x}",
        "builder.mods": "{}",
        "builder.sources": "{}",
        "builder.models": "[]",
    }


def number(
    endpoint: Endpoint,
    repository: str,
    number: int,
    layers: Sequence[Files] = (),
    pack: Callable[[bytes], bytes] = bytes,
) -> NumberedImage:
    """An image with this number in the engine, and its record."""
    name = f"{repository}:{number}"
    load(endpoint, name, layers or _layers(repository, number), labels(repository, number), pack)
    return record(endpoint, name, number)


def _layers(repository: str, number: int) -> Sequence[Files]:
    return BASE, {f"own-{repository}-{number}": f"{number}\n".encode() * 10_000}


def record(endpoint: Endpoint, tag: str, number: int) -> NumberedImage:
    """The record of an image in the engine."""
    details = images.inspect_image(endpoint, tag)
    assert details is not None
    return NumberedImage(
        built=BUILT.format(number % 60),
        definition="small",
        platform=details.platform,
        fingerprint=images.fingerprint(details),
        input_hash=f"sha256:{number:064x}",
        size=details.size,
    )


def stock(
    project: Project, endpoint: Endpoint, repository: str, numbers: Iterable[int], models: Iterable[str] = ("Org/M",)
) -> Lock:
    """Numbers in the engine and in images.lock, as if they had been built one after another for these models."""
    lock = Lock()
    made = list(numbers)
    _load(endpoint, {f"{repository}:{n}": (_layers(repository, n), labels(repository, n)) for n in made})
    for n in made:
        name = ImageName(repository, n)
        lock = lock.with_image(name, record(endpoint, str(name), n)).with_current(name)
        for model in models:
            lock = lock.with_pairing(model, Pairing(name))
    images.tag_image(endpoint, f"{repository}:{made[-1]}", f"{repository}:latest")
    project.lock.write_text(dump_lock(lock), encoding="utf-8")
    return lock

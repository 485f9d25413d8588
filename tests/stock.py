"""Numbered images without builds: a few files are loaded into the engine, and a lock records the images."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from builder.base.project import Project
from builder.engine import images
from builder.engine.client import Endpoint, environment
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
    packed = [_tar(layer) for layer in layers]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": "1980-01-01T00:00:00Z",
        "config": {"Labels": dict(labels or {}), "Cmd": ["/none"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in packed]},
        "history": [{"created_by": f"COPY {n}"} for n in range(len(packed))]
        + [{"created_by": "LABEL x=y", "empty_layer": True}],
    }
    files = {f"{n}.tar": pack(layer) for n, layer in enumerate(packed)}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": list(files)}]
    archive = _tar(
        {**files, "config.json": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode()}
    )
    docker = str(Path(endpoint.buildx[0]).with_name("docker"))
    docker = docker if Path(docker).exists() else "docker"
    env = {**os.environ, **environment(endpoint)}
    subprocess.run([docker, "load"], input=archive, env=env, check=True, capture_output=True)


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
    own: Files = {f"own-{repository}-{number}": f"{number}\n".encode() * 10_000}
    name = f"{repository}:{number}"
    load(endpoint, name, layers or (BASE, own), labels(repository, number), pack)
    return record(endpoint, name, number)


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
    for n in numbers:
        name = ImageName(repository, n)
        lock = lock.with_image(name, number(endpoint, repository, n))
        lock = lock.with_repository(repository, lock.images[repository].with_current(n))
        for model in models:
            lock = lock.with_pairing(model, Pairing(name))
        images.tag_image(endpoint, str(name), f"{repository}:latest")
    project.lock.write_text(dump_lock(lock), encoding="utf-8")
    return lock

"""The names of numbers and of copies in a registry; how they get there is tested with a real registry."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from builder.lock.model import ImageName
from builder.numbers import named_registry
from builder.numbers.named_registry import Registry
from tests import projects, registries
from tests.workspaces import NO_ENGINE, workspace

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("reference", "copy"),
    [
        ("debian:bookworm", "docker.io/library/debian"),
        ("eugr/spark-vllm@sha256:1", "docker.io/eugr/spark-vllm"),
        ("ghcr.io/a/b:1@sha256:1", "ghcr.io/a/b"),
        ("127.0.0.1:5000/a:1", "127.0.0.1-5000/a"),
    ],
)
def test_a_copy_of_others_is_below_mirror_with_its_registry_and_name(reference: str, copy: str) -> None:
    assert named_registry.mirror_of("r.example:9/us", reference) == f"r.example:9/us/mirror/{copy}"


def test_a_registry_that_was_started_for_a_copy_needs_no_login() -> None:
    registry = Registry("127.0.0.1:5000/us", private=True)
    assert registry.repository(ImageName("small", 3)) == "127.0.0.1:5000/us/small"
    assert registry.login(ImageName("small", 3)) == {}
    assert not Registry("127.0.0.1:5000").private


def test_a_copy_in_the_folder_is_taken_before_one_in_the_registry(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    manifest = json.dumps({"config": {"mediaType": "c", "digest": f"sha256:{'1' * 64}", "size": 2}, "layers": []})
    digest = hashlib.sha256(manifest.encode()).hexdigest()
    for name, content in ((digest, manifest), ("1" * 64, "{}")):
        projects.write(tmp_path / f"copies/blobs/sha256/{name}", content)
    context, reference = workspace(project, NO_ENGINE), f"debian@sha256:{digest}"
    assert named_registry.mirrored(context, reference) is None
    registries.configure(project, mirror="copies")
    assert named_registry.mirrored(context, f"debian@sha256:{'2' * 64}") is None
    registries.configure(project, registry="127.0.0.1:9", mirror="copies")
    assert named_registry.mirrored(context, reference) == f"oci-layout://{tmp_path}/copies@sha256:{digest}"

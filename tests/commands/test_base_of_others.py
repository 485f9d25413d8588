"""Definitions on images that others build, from a real registry whose tag moves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from builder.engine import containers, images
from builder.lock import reading
from builder.lock.model import ImageName, Version
from builder.lock.pins import IncludedPin
from tests import projects
from tests.commands import bases_of_others
from tests.commands.bases_of_others import COMMITS, OthersImage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from builder.engine.client.endpoint import Endpoint
    from builder.project import Project
    from tests.conftest import Command
    from tests.registries import Registry

pytestmark = pytest.mark.engine

PATCH = """\
--- a/vllm/config.py
+++ b/vllm/config.py
@@ -1,3 +1,3 @@
 a = 1
-b = 2
+b = 3
 c = 3
"""


@pytest.fixture
def base(registry: Registry, endpoint: Endpoint) -> Iterator[str]:
    """The name of an image in a registry, where nothing is yet; what the engine pulled of it is gone at the end."""
    reference = f"{registry.address}/others/vllm"
    yield f"{reference}:nightly"
    for image in images.listing(endpoint):
        for name in (*(image["RepoTags"] or ()), *(image["RepoDigests"] or ())):
            if name.startswith(reference):
                images.remove(endpoint, name)


@pytest.fixture
def publish(endpoint: Endpoint, tmp_path: Path, base: str) -> Callable[[OthersImage], None]:
    """Makes the tag of ``base`` mean this image from now on."""
    return lambda image: bases_of_others.publish(endpoint, tmp_path / "others", image, base)


def record(project: Project, repository: str, number: int) -> dict[str, Version]:
    image = reading.read(project.lock).image(ImageName(repository, number))
    assert image
    return image.versions


def run(endpoint: Endpoint, image: str, script: str) -> str:
    with containers.running(endpoint, image, labels={"builder.tests": ""}) as container:
        return container.run(["sh", "-c", script], timeout=60).output


def test_a_tag_that_moves(
    small: Project,
    builder: Command,
    repository: str,
    base: str,
    publish: Callable[[OthersImage], None],
    endpoint: Endpoint,
) -> None:
    publish(OthersImage())
    bases_of_others.define(small, repository, base)
    projects.add_mod(
        small.root, "fix", "", {"fix.patch": PATCH}, "description: x\npatches: [{file: fix.patch, package: vllm}]\n"
    )
    bases_of_others.define(small, repository, base, more="mods: [fix]\n")
    first = builder("build", "small")
    assert f"pulling {base}, to read what it brings" in first.stderr
    pins = reading.read(small.lock).pins["small"]
    (pin,) = (platform.sources["vllm"] for platform in pins.values())
    assert isinstance(pin, IncludedPin)
    assert (pin.version, pin.commit) == ("0.23.0", COMMITS["0.23.0"])
    assert record(small, repository, 1) == {"vllm": Version("0.23.0", COMMITS["0.23.0"])}
    assert "0.23.0" in builder("list").stdout
    assert "b = 3" in run(endpoint, f"{repository}:1", f"cat {bases_of_others.SYSTEM}/vllm/config.py")
    metadata = run(endpoint, f"{repository}:1", "cat /workspace/build-metadata.yaml")
    assert f'vllm_commit: "{COMMITS["0.23.0"]}"' in metadata
    assert "gpu_arch: 12.1a\n" in metadata
    assert "nightly: yes\n" in metadata
    assert 'build_date: "20' in metadata

    # The tag moves; nothing here does.
    publish(OthersImage("0.24.0", {"torch": "2.13.0+cu130", "transformers": "5.3.0", "new-one": "1.0"}))
    assert f"already built as {repository}:1" in builder("build", "small").stdout
    assert "nothing moved" in builder("lock", "small").stdout

    moved = builder("lock", "small", "--update", "base").stdout
    assert f"small vllm: 0.23.0 ({COMMITS['0.23.0'][:12]}) → 0.24.0 ({COMMITS['0.24.0'][:12]})" in moved
    assert re.search(r"up +transformers +5\.2\.0 → 5\.3\.0", moved)
    assert re.search(r"new +new-one +1\.0", moved)
    builder("build", "small")
    assert record(small, repository, 2) == {"vllm": Version("0.24.0", COMMITS["0.24.0"])}
    text = builder("diff", f"{repository}:1", f"{repository}:2").stdout
    assert f"vllm  0.23.0 ({COMMITS['0.23.0'][:12]}) → 0.24.0 ({COMMITS['0.24.0'][:12]})" in text
    assert re.search(r"up +transformers +5\.2\.0 → 5\.3\.0", text)
    builder("rollback", "small")
    assert images.inspect(endpoint, f"{repository}:latest") == images.inspect(endpoint, f"{repository}:1")
    assert f"{repository}:1" in builder("lock", "--check", "small").stdout + builder("list").stdout

"""The smallest mod: two entries of `files`, nothing run."""

from __future__ import annotations

import pytest

from builder.engine import containers
from builder.engine.client import Endpoint
from tests.mods import releases
from tests.mods.conftest import CpuImages

NAME = "drop-in-files"


def test_it_only_drops_files() -> None:
    one = releases.shipped(NAME)
    assert [(copy.source, copy.to) for copy in one.copies] == [("system-prompt.txt", "."), ("notes", "notes")]
    assert (one.run, one.network, one.patches, one.packages) == (None, False, (), ())


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.image
def test_the_files_are_in_the_image_as_they_are_in_the_mod(endpoint: Endpoint, cpu: CpuImages) -> None:
    with containers.running(endpoint, cpu.modded, labels={"builder.test": "1"}) as container:
        for file in ("system-prompt.txt", "notes/about.md"):
            baked = container.run(["cat", f"/workspace/vllm/{file}"], timeout=60).output
            assert baked == (releases.folder_of(NAME) / file).read_text(encoding="utf-8")

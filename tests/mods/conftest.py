"""What the tests of the shipped mods share: released wheels, and the cpu image without mods and with those it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from builder.engine.client import Endpoint
from tests import cpu_image, shared
from tests.conftest import remove_all
from tests.mods import releases
from tests.mods.releases import Releases

if TYPE_CHECKING:
    from collections.abc import Iterator


BAKED = ("drop-in-files", "enable-hybrid-int4fp8", "fix-qwen3.5-autoround")


@pytest.fixture(scope="session")
def released() -> Releases:
    return releases.releases(shared.folder() / "wheels")


@dataclass(frozen=True)
class CpuImages:
    """The cpu image ``plain``, and ``modded`` with the mods of BAKED; both with vLLM 0.32.0."""

    plain: str
    modded: str


@pytest.fixture(scope="session")
def cpu(tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint) -> Iterator[CpuImages]:
    repository = f"{shared.unique_name()}-cpu"
    project = cpu_image.project(tmp_path_factory.mktemp("cpu"), repository)
    cpu_image.builder(project, "build", "cpu")
    cpu_image.builder(project, "build", "cpu", *(word for name in BAKED for word in ("--mod", name)))
    yield CpuImages(f"{repository}:1", f"{repository}:2")
    remove_all(endpoint, repository)

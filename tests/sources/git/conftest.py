"""The repository that most tests of git ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sources.git_server import Vllm, served_vllm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def vllm(tmp_path: Path) -> Iterator[Vllm]:
    with served_vllm(tmp_path) as served:
        yield served

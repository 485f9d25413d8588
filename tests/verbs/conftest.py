"""What the tests of several verbs share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.verbs import git_upstream


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[git_upstream.Upstream]:
    """A repository that a git daemon serves."""
    with git_upstream.serving(tmp_path) as served:
        yield served

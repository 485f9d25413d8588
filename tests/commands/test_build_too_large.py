from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.lock import lock_file
from tests import projects

if TYPE_CHECKING:
    from builder.base.project import Project
    from tests.conftest import Command


pytestmark = pytest.mark.engine


def test_a_build_that_does_not_fit_the_disk_is_refused_before_it_begins(
    small: Project, builder: Command, repository: str
) -> None:
    file = small.root / "dockerfiles/small/image.yaml"
    projects.write(file, f"{file.read_text(encoding='utf-8')}first_build: {{minutes: 90, disk_gb: 90000}}\n")
    told = builder("build", "chat", "--dry-run").stdout
    assert "expected: 1 h 30 min (from image.yaml), 90.0 TB of disk (from image.yaml; " in told
    refused = builder("build", "chat", code=1).stderr
    assert "building small needs 90.0 TB of disk space (from image.yaml), but " in refused
    assert "Nothing was built" in refused
    assert not small.lock.exists()
    assert builder("build", "chat", "--ignore-disk").stdout.startswith(f"built {repository}:1 in ")
    # It is no input: with another figure nothing is built anew.
    input_hash = lock_file.read_lock(small.lock).images[repository].numbers[1].input_hash
    projects.write(file, file.read_text(encoding="utf-8").replace("90000", "1"))
    assert builder("build", "chat").stdout == f"already built as {repository}:1\n"
    assert lock_file.read_lock(small.lock).images[repository].numbers[1].input_hash == input_hash

"""A recipe of the field whose mods belong to run time in part, built on the real engine."""

from __future__ import annotations

import pytest

from builder.base.project import Project
from builder.engine.client import Endpoint
from builder.lock import lock_file
from tests import projects
from tests.conftest import Command

pytestmark = pytest.mark.engine

LOOP = """\
LOG=/tmp/loop.log
nohup bash -c '
  while true; do
    sync; echo 3 > /proc/sys/vm/drop_caches
    sleep 60
  done
' > "$LOG" 2>&1 &
echo "a loop with PID $!"
"""


@pytest.mark.long
def test_a_recipe_with_a_mod_that_no_image_keeps_is_built_without_it(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    projects.add_mod(small.root, "loop", LOOP, {})
    projects.add_recipe(small.root, "looped", repository, "Org/Looped", ["mods/loop", "mods/template"])
    done = builder("build", "looped")
    assert "mod loop is left out: run.sh writes /proc/sys/vm/drop_caches" in done.stdout + done.stderr
    assert [*lock_file.read_project_lock(small).images[repository].numbers[1].mods] == ["template"]
    assert "already" in builder("build", "looped").stdout
    builder("verify")
    exported = builder("export", "looped", "--format", "recipe").stdout
    assert "mods/loop" in exported
    assert "mods/template" not in exported
    failed = builder("build", "small", "--mod", "loop", code=6)
    assert "these processes still ran after" in failed.stdout + failed.stderr

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests import projects, workers

if TYPE_CHECKING:
    from pathlib import Path

FILE = """\
import os, time
from pathlib import Path
import pytest
seen = Path({seen!r})
def note():
    with seen.open("a") as file:
        file.write(f"{{Path(__file__).name}} {{os.environ['PYTEST_XDIST_WORKER']}}\\n")
    time.sleep(0.2)
@pytest.mark.parametrize("n", range(4))
def test_it(n): note()
"""


@pytest.mark.slow
def test_a_file_runs_in_one_process_and_two_files_in_two(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    folder = tmp_path / "clone/tests"
    for name in ("a", "b"):
        projects.write(folder / f"test_{name}.py", FILE.format(seen=str(seen)))
    plugin = "tests.conftest"
    argv = [sys.executable, "-m", "pytest", "-q", "-p", plugin, "-c", "/dev/null", "--rootdir", str(tmp_path / "clone")]
    done = subprocess.run(
        [*argv, "-n", "2", str(folder)], cwd=projects.REPOSITORY_ROOT, capture_output=True, text=True, timeout=600
    )
    assert "8 passed" in done.stdout, done.stdout + done.stderr
    pairs = {tuple(line.split()) for line in seen.read_text().splitlines()}
    assert sorted(name for name, _ in pairs) == ["test_a.py", "test_b.py"]
    assert len({worker for _, worker in pairs}) == 2


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["first", "second"])
def test_each_scenario_is_a_group_of_its_own(scenario: str, request: pytest.FixtureRequest) -> None:
    assert workers.group(request.node) == request.node.nodeid

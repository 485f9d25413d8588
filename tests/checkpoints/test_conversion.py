"""The packages that only `cast` and `quantize` require, in an environment without them."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.checkpoints import made
from tests.checkpoints.made import Kitchen
from tests.sources.wheelhouse import make_wheel

pytestmark = pytest.mark.slow

EXTRA = ("numpy", "ml_dtypes")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has every package of this one but those of the extra."""
    folder = tmp_path_factory.mktemp("without")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(EXTRA):
            (site / entry.name).symlink_to(entry)
    (folder / "bin/uv").symlink_to(Path(sys.executable).parent / "uv")
    return folder / "bin/python"


@pytest.fixture
def kitchen(tmp_path: Path) -> Kitchen:
    return made.kitchen(tmp_path)


def builder(python: Path, kitchen: Kitchen, *arguments: str, code: int = 0) -> str:
    """What the command prints, which ends with this exit code."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_", "PYTHON"))}
    done = subprocess.run(
        [python, "-m", "builder", "--project", kitchen.project.root, *arguments],
        env={**kept, "HOME": str(kitchen.folder / "home"), "COLUMNS": "500"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_all_that_copies_works_without_them(python: Path, kitchen: Kitchen) -> None:
    script = f"from importlib.util import find_spec; print([name for name in {EXTRA} if find_spec(name)])"
    found = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
    assert "Usage:" in builder(python, kitchen, "--help")
    assert "no images yet" in builder(python, kitchen, "list")
    assert "not installed" not in builder(python, kitchen, "checkpoints", "plan", "hybrid")
    assert "hybrid@" in builder(python, kitchen, "checkpoints", "build", "hybrid")
    assert "hybrid" in builder(python, kitchen, "checkpoints", "verify", "hybrid")


@pytest.mark.parametrize(
    "step", ['{cast: F32, select: ["mtp.*norm*"]}', "{quantize: int8-rows, select: [lm_head.weight], expect: 1}"]
)
def test_a_step_that_computes_names_them_before_any_work(python: Path, kitchen: Kitchen, step: str) -> None:
    kitchen.define(more=f"  - {step}\n")
    reason = "`cast` and `quantize` require the extra `builder[checkpoints]`; not installed: numpy, ml-dtypes"
    remedy = f"install them: {python} -m uv pip install --python {python} numpy ml-dtypes"
    planned = builder(python, kitchen, "checkpoints", "plan", "hybrid")
    refused = builder(python, kitchen, "checkpoints", "build", "hybrid", code=2)
    for printed in (planned, refused):
        assert reason in printed
        assert remedy in printed
    assert not kitchen.cache.exists()


def test_the_remedy_installs_into_the_environment_of_the_program(python: Path, tmp_path: Path) -> None:
    """Where the program was installed as a tool there is no pip: uv, which the program requires, is there."""
    make_wheel(tmp_path, "toy", "1.0", files={"toy/a.py": "a = 1\n"})
    remedy = [str(python), "-m", "uv", "pip", "install", "--python", str(python)]
    subprocess.run([*remedy, "--offline", "--no-index", "--find-links", tmp_path, "toy"], check=True)
    subprocess.run([python, "-c", "import toy.a"], check=True)

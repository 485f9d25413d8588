"""The wheel, made like a release, installed without a checkout, and used in an empty folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.engine.client import Endpoint
from tests import projects, shared, shipped_files
from tests.conftest import remove_all
from tests.shipped_files import CLONE

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.slow

# The parts of the checkout that a wheel is made of.
SOURCES = (
    "builder",
    "dockerfiles",
    "mods",
    "recipes",
    "checkpoints",
    "scripts",
    "pyproject.toml",
    "hatch_build.py",
    "README.md",
)
FILES = ("LICENSE", "CHANGELOG.md", "images.lock")
IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@example.org")


def must(*argv: str, cwd: Path | None = None) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PYTHON"))}
    done = subprocess.run(argv, cwd=cwd, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _install(folder: Path) -> str:
    """Makes the wheel from git's files through the source archive, and installs it. Returns the commit."""
    checkout = folder / "checkout"
    listed = must("git", "-c", f"safe.directory={CLONE}", "ls-files", "-z", "--", *SOURCES, *FILES, cwd=CLONE)
    for name in filter(None, listed.split("\0")):
        if (CLONE / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CLONE / name, checkout / name)
    must("git", "init", "--quiet", cwd=checkout)
    must("git", "add", "--all", cwd=checkout)
    must("git", *IDENTITY, "commit", "--quiet", "--message=all", cwd=checkout)
    commit = must("git", "rev-parse", "HEAD", cwd=checkout).strip()
    uv = str(Path(sys.executable).parent / "uv")
    # hatchling and click are already installed: no index is used.
    must(uv, "build", "--quiet", "--offline", "--no-build-isolation", "--python", sys.executable, cwd=checkout)
    (wheel,) = (checkout / "dist").glob("*.whl")
    must(uv, "venv", "--quiet", "--python", sys.executable, str(folder / "venv"))
    python = folder / "venv/bin/python"
    must(uv, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", str(python), str(wheel))
    # Its dependencies come from the environment of the tests; the path file of the checkout there has no effect.
    (site,) = (folder / "venv/lib").glob("python*/site-packages")
    (site / "zz_dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    shutil.rmtree(checkout)
    return commit


@pytest.fixture(scope="module")
def installed() -> tuple[Path, str]:
    """The environment with the wheel, and the commit from which the wheel was made."""
    folder = shared.folder() / "wheel"
    folder.mkdir(exist_ok=True)
    return folder / "venv", shared.once("wheel", lambda: _install(folder))


@pytest.fixture
def repository(endpoint: Endpoint) -> Iterator[str]:
    """A unique name for images. The images are removed when the test ends."""
    name = shared.unique_name()
    yield name
    remove_all(endpoint, name)


def builder(installed: tuple[Path, str], cwd: Path, *arguments: str) -> str:
    return must(str(installed[0] / "bin/builder"), *arguments, cwd=cwd)


def test_it_knows_the_commit_that_it_was_made_from(installed: tuple[Path, str], tmp_path: Path) -> None:
    assert builder(installed, tmp_path, "--version").endswith(f"({installed[1][:12]})\n")


def test_no_checkout_is_in_sight(installed: tuple[Path, str], tmp_path: Path) -> None:
    code = "import builder; from builder.moving import shipped; print(builder.__file__, shipped.shipped_project().root)"
    for path in must(str(installed[0] / "bin/python"), "-c", code, cwd=tmp_path).split():
        assert path.startswith(str(installed[0]))


def test_it_has_every_file_that_the_checkout_has(installed: tuple[Path, str], tmp_path: Path) -> None:
    builder(installed, tmp_path, "init", "--all")
    for folder in ("dockerfiles", "mods", "recipes", "checkpoints"):
        shipped = shipped_files.project().root / folder
        # Python stores the compiled files of a mod beside the mod.
        for file in (path for path in shipped.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
            copy = tmp_path / folder / file.relative_to(shipped)
            assert copy.read_bytes() == file.read_bytes()
            assert copy.stat().st_mode & 0o100 == file.stat().st_mode & 0o100, copy
    assert os.access(tmp_path / "scripts/engine", os.X_OK)


def test_the_first_commands_work_in_an_empty_folder(installed: tuple[Path, str], tmp_path: Path) -> None:
    builder(installed, tmp_path, "init", "--cpu")
    assert "no problems" in builder(installed, tmp_path, "recipes", "check")
    assert "no images yet" in builder(installed, tmp_path, "list")
    builder(installed, tmp_path, "mods", "new", "house-rules")
    assert "house-rules" in builder(installed, tmp_path, "mods", "list")
    assert "every file is the same as in" in builder(installed, tmp_path, "init", "--update")
    assert "image.schema.json" in builder(installed, tmp_path, "schema")


@pytest.mark.engine
def test_from_an_empty_folder_to_a_rolled_back_model(
    installed: tuple[Path, str], tmp_path: Path, repository: str
) -> None:
    """Uses a user's own definition, which builds in a second."""
    builder(installed, tmp_path, "init", "--minimal")
    projects.write(tmp_path / "dockerfiles/small/image.yaml", projects.IMAGE.format(repository=repository))
    projects.write(tmp_path / "dockerfiles/small/Dockerfile.j2", projects.DOCKERFILE)
    projects.add_mod(tmp_path, "template", 'cp chat.jinja "$WORKSPACE_DIR/chat.jinja"\n', {"chat.jinja": "one\n"})
    projects.add_recipe(tmp_path, "chat", repository, "Org/Model-1B", ["mods/template"])
    assert f"built {repository}:1" in builder(installed, tmp_path, "build", "chat")
    projects.write(tmp_path / "mods/template/chat.jinja", "two\n")
    assert f"built {repository}:2" in builder(installed, tmp_path, "build", "chat")
    moved = builder(installed, tmp_path, "rollback", "chat")
    assert f"Org/Model-1B: {repository}:2 → {repository}:1" in moved
    assert f"{repository}:1" in builder(installed, tmp_path, "list", "--models")


@pytest.mark.parametrize(
    "path",
    [
        "bash-completion/completions/builder",
        "zsh/site-functions/_builder",
        "fish/vendor_completions.d/builder.fish",
    ],
)
def test_each_shell_completes(installed: tuple[Path, str], path: str) -> None:
    assert "_BUILDER_COMPLETE" in (installed[0] / "share" / path).read_text()

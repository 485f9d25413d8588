"""The tests see the files of git, whatever was built and edited in their clone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from builder.definitions import image, recipe
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock
from builder.lock.text import dump_lock
from tests import locks, projects, shipped_files


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of the shipped project, with everything committed."""
    root = tmp_path / "clone"
    shutil.copytree(shipped_files.project().root, root)
    for argv in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message=shipped"]):
        git(root, *argv)
    return root


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


def use(root: Path) -> None:
    """Leaves the files of 20 builds, another project and an afternoon of edits in a clone."""
    lock = Lock(pins=lock_file.read_lock(root / "images.lock").pins)
    for number in range(1, 21):
        lock = lock.with_image(ImageName("vllm-node-cpu", number), locks.numbered())
        projects.write(root / f"builds/vllm-node-cpu/{number}/Dockerfile", "FROM scratch\n")
    projects.write(root / "images.lock", dump_lock(lock))
    projects.write(root / "builds/other/1/plan.json", "{")
    projects.write(root / "builder.yaml", "registry: registry.lan\n")
    projects.write(root / ".builder/logs/1.log", "built\n")
    projects.write(root / "recipes/mine.yaml", "not: a recipe\n")
    projects.write(root / "dockerfiles/mine/image.yaml", "not: a definition\n")
    projects.write(root / "mods/flashqla/notes.txt", "not to be part of the mod\n")
    git(root, "add", "--force", "builds/other")


def files(root: Path) -> dict[str, bytes]:
    """All files below ``root`` except git's own files."""
    files = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {path: content for path, content in files.items() if not path.startswith(".git/")}


@pytest.mark.slow
def test_a_clone_in_use_is_as_one_just_made(clone: Path, tmp_path: Path) -> None:
    before = files(shipped_files.export(clone, tmp_path / "before").root)
    assert before == files(clone)
    use(clone)
    assert files(shipped_files.export(clone, tmp_path / "after").root) == before


def test_what_is_being_edited_is_under_test(clone: Path, tmp_path: Path) -> None:
    recipe_file = clone / "recipes/qwen3-0.6b-cpu.yaml"
    projects.write(recipe_file, recipe_file.read_text(encoding="utf-8") + "# edited\n")
    projects.write(clone / "recipes/added.yaml", "name: added\n")
    git(clone, "add", "recipes/added.yaml")
    shutil.rmtree(clone / "dockerfiles/tf5")
    exported = shipped_files.export(clone, tmp_path / "exported")
    assert (exported.recipes / recipe_file.name).read_text(encoding="utf-8").endswith("# edited\n")
    assert "added" in recipe.recipe_names(exported)
    assert "tf5" not in image.definition_names(exported)


@pytest.mark.slow
def test_a_script_stays_executable(clone: Path, tmp_path: Path) -> None:
    script = clone / "mods/flashqla/run.sh"
    script.chmod(0o755)
    exported = shipped_files.export(clone, tmp_path / "exported")
    assert (exported.root / script.relative_to(clone)).stat().st_mode & 0o111


def test_in_a_hook_of_another_repository(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other.git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    assert files(shipped_files.export(clone, tmp_path / "exported").root)


def test_the_shipped_project_is_not_the_clone() -> None:
    shipped = shipped_files.project()
    assert shipped.root != projects.REPOSITORY_ROOT
    assert shipped_files.project() is shipped
    names = sorted(path.name for path in shipped.root.iterdir())
    assert names == ["builder", "checkpoints", "dockerfiles", "images.lock", "mods", "recipes"]


def test_no_test_reads_the_clone_for_the_shipped_project() -> None:
    """Code, scripts and pages are read from the clone; definitions, mods, recipes and images.lock are not."""
    root = "projects.REPOSITORY_ROOT"
    readings = (f"Project({root})", *(f'{root} / "{name}' for name in ("dockerfiles", "mods", "recipes", "images")))
    here = Path(__file__).parent
    readers = [
        path.relative_to(here.parent).as_posix()
        for folder in (here, here.parent / "benchmarks")
        for path in sorted(folder.rglob("*.py"))
        if any(reading in path.read_text(encoding="utf-8") for reading in readings)
    ]
    assert readers == []

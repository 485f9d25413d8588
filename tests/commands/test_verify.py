"""images.lock against the engine, the build directories and the files, each put wrong in turn."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.definitions.source_patches import SourcePatch
from builder.engine import images
from builder.engine.client import Endpoint
from builder.lock import lock_file
from builder.lock.model import GitPin, ImageName
from builder.lock.text import dump_lock
from tests import projects
from tests.conftest import Command

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.engine


def found(builder: Command, code: int) -> list[tuple[str, str]]:
    """The kind and subject of each finding of a ``verify`` that ends with ``code``."""
    findings = json.loads(builder("verify", "--json", code=code).stdout)["findings"]
    return [(finding["kind"], finding["subject"]) for finding in findings]


def test_what_is_lost_edited_or_missing_is_told_with_its_remedy(
    small: Project, builder: Command, repository: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    assert builder("verify").stdout == "everything matches images.lock\n"
    builder("build", "chat")
    small.lock.unlink()
    assert found(builder, 7) == [("missing", "images.lock")]
    builder("lock", "--recover")
    assert found(builder, 0) == []

    # Without an engine, the files are still compared.
    nowhere = {"DOCKER_HOST": f"unix://{tmp_path}/nothing.sock"}
    assert builder("verify", code=5, environ=nowhere).stdout.startswith("unknown  engine: ")
    dockerfile = small.builds / repository / "1/Dockerfile"
    text = dockerfile.read_text(encoding="utf-8")
    projects.write(dockerfile, "FROM scratch\n")
    assert f"edited   {repository}:1" in builder("verify", code=5, environ=nowhere).stdout
    projects.write(dockerfile, text)
    assert found(builder, 0) == []

    # An edited build directory is restored before its missing image is built again.
    images.remove_extra_tag(endpoint, f"{repository}:1")
    projects.write(small.builds / repository / "1/mods/template/chat.jinja", "edited\n")
    missing, edited = json.loads(builder("verify", "--json", code=7).stdout)["findings"]
    again = f"`builder rebuild {repository}:1` builds it again, after its build directory is restored (see below)"
    assert missing["remedy"] == again
    assert edited["kind"] == "edited"
    # A pull reads no build directory.
    lock, name = lock_file.read_lock(small.lock), ImageName(repository, 1)
    pushed = replace(lock.images[repository].numbers[1], digest=f"sha256:{1:064x}")
    projects.write(small.lock, dump_lock(lock.with_image(name, pushed)))
    told = builder("verify", code=7).stdout
    assert "`builder pull" in told
    assert "see below" not in told


@pytest.mark.long
def test_an_image_that_is_gone_or_another_one_fails(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    builder("build", "chat")
    projects.write(small.root / "mods/template/chat.jinja", "version two\n")
    builder("build", "chat")
    assert builder("verify").stdout == "everything matches images.lock\n"

    images.tag_image(endpoint, f"{repository}:1", f"{repository}:latest")
    assert found(builder, 7) == [("moved", f"{repository}:latest")]
    output = builder("verify", code=7).stdout
    assert output == (
        f"moved    {repository}:latest: does not point to {repository}:2 → `builder promote {repository}:2`\n"
    )
    # The remedy mends it, also where the number is marked bad by now, and where the tag is gone.
    builder("mark", f"{repository}:2", "bad")
    builder("promote", f"{repository}:2")
    assert found(builder, 0) == []
    images.remove_extra_tag(endpoint, f"{repository}:latest")
    assert found(builder, 7) == [("moved", f"{repository}:latest")]
    builder("promote", f"{repository}:2")
    builder("mark", f"{repository}:2", "untested")

    images.remove_image(endpoint, f"{repository}:1")
    assert found(builder, 7) == [("missing", f"{repository}:1")]
    lock = lock_file.read_lock(small.lock)
    record = lock.images[repository]
    pruned = record.with_number(1, replace(record.numbers[1], pruned="2026-11-22T08:00:00Z"))
    recorded = small.lock.read_bytes()
    small.lock.write_text(dump_lock(lock.with_repository(repository, pruned)), encoding="utf-8")
    assert found(builder, 0) == []
    small.lock.write_bytes(recorded)
    images.tag_image(endpoint, f"{repository}:2", f"{repository}:1")
    assert found(builder, 7) == [("moved", f"{repository}:1")]
    images.remove_extra_tag(endpoint, f"{repository}:1")
    builder("rebuild", f"{repository}:1")
    assert found(builder, 0) == []


@pytest.mark.long
def test_an_edited_file_fails_otherwise(small: Project, builder: Command, repository: str) -> None:
    builder("build", "chat")
    recorded = small.lock.read_bytes()
    pull = SourcePatch("7", "c" * 40, "d" * 64)
    pin = GitPin("https://example.org/vllm.git", "main", "a" * 40, "0.19", "2026-11-19T10:00:00Z", (pull,))
    lock = lock_file.read_lock(small.lock)
    ((platform, pins),) = lock.pins["small"].items()
    small.lock.write_text(dump_lock(lock.with_pins("small", platform, replace(pins, sources={"vllm": pin}))))
    file = f"dockerfiles/small/pulls/vllm-7-{'d' * 12}.patch"
    assert (
        f"edited   small: {file}, the vendored patch of pull request 7, cannot be read"
        in builder("verify", code=1).stdout
    )
    projects.write(small.root / file, "another diff\n")
    assert f"edited   small: {file} was edited" in builder("verify", code=1).stdout
    (small.root / file).unlink()
    small.lock.write_bytes(recorded)

    folder = small.builds / repository / "1"
    mod = folder / "mods/template/chat.jinja"
    projects.write(mod, "edited\n")
    output = builder("verify", code=1).stdout
    assert output == (
        f"edited   {repository}:1: builds/{repository}/1: mods/template was edited"
        f" → `git checkout HEAD -- builds/{repository}/1`\n"
    )
    shutil.rmtree(folder)
    assert found(builder, 1) == [("edited", f"{repository}:1")]
    images_gone = builder("verify", code=1).stdout
    assert f"the build directory of {repository}:1 is missing" in images_gone


def test_what_did_not_change_is_not_locked_again(small: Project, builder: Command) -> None:
    builder("lock", "small")
    before = small.lock.read_bytes(), small.lock.stat().st_ino
    assert builder("lock", "small").stdout == "nothing moved\n"
    assert (small.lock.read_bytes(), small.lock.stat().st_ino) == before

"""Patches of others that a project does not hold: fetched again from a real server, and compared with their pins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import LockError
from builder.base.project import Project
from builder.definitions import image
from builder.definitions.source_patches import SourcePatch
from builder.lock.model import BasePin, GitPin, Pins
from builder.pins import pinning, vendored
from builder.pins.resolver import Resolver
from builder.sources.git import UserSettings
from tests import projects
from tests.pins.bases import no_contents
from tests.sources.git_server import DRAFTER, Vllm, lines, served_vllm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.slow

PLATFORM = "linux/arm64"
BASE = BasePin("debian:bookworm-slim", "sha256:" + "b" * 64)
PULLS = (40898, 40004)


@pytest.fixture
def vllm(tmp_path: Path) -> Iterator[Vllm]:
    with served_vllm(tmp_path / "git") as served:
        yield served


@pytest.fixture
def definition(tmp_path: Path, vllm: Vllm) -> image.ImageDefinition:
    project = Project(tmp_path / "project")
    head = f"repository: one\ndescription: one\nplatform: {PLATFORM}\nbase: {BASE.requested}\n"
    source = f'sources: {{vllm: {{git: "{vllm.url}", ref: main, pulls: {list(PULLS)}}}}}\n'
    projects.write(project.dockerfiles / "one/image.yaml", head + source)
    projects.write(project.dockerfiles / "one/Dockerfile.j2", "FROM {{ base }}\n")
    return image.load_image(project, "one", PLATFORM)


@pytest.fixture
def pinned(tmp_path: Path, definition: image.ImageDefinition) -> pinning.ResolvedPins:
    """The pins, made in another project, of which this one has images.lock alone."""
    sources = Resolver(Project(tmp_path / "other"), UserSettings(), str, lambda *_: "", no_contents, lambda _: None)
    resolved = pinning.resolve_missing(definition, Pins(BASE), (), sources, {})
    assert not resolved.faults
    return resolved


def fetch(tmp_path: Path, definition: image.ImageDefinition, pins: Pins, messages: list[str]) -> dict[str, bytes]:
    project = Project(tmp_path / "project")
    return vendored.refetch_pull(project, definition, pins, {}, lambda event: messages.append(str(event)))


@pytest.mark.long
def test_all_patches_are_had_again_and_told(
    tmp_path: Path, vllm: Vllm, definition: image.ImageDefinition, pinned: pinning.ResolvedPins
) -> None:
    messages: list[str] = []
    assert fetch(tmp_path, definition, pinned.pins, messages) == pinned.patches
    told = [text for text in messages if "still gives the pinned patch" in text]
    assert [f"pull request {number} of {vllm.url}" in text for number, text in zip(PULLS, told, strict=True)] == [
        True
    ] * 2


@pytest.mark.long
def test_the_pinned_state_is_taken_not_the_present_one(
    tmp_path: Path, vllm: Vllm, definition: image.ImageDefinition, pinned: pinning.ResolvedPins
) -> None:
    vllm.history.repository.commit(
        "refs/pull/40898/head", "Pushed later", {DRAFTER: lines(1, 60, line20="later")}, vllm.history.pull_40898
    )
    assert fetch(tmp_path, definition, pinned.pins, []) == pinned.patches


def test_a_patch_that_is_there_is_not_fetched(
    tmp_path: Path, vllm: Vllm, definition: image.ImageDefinition, pinned: pinning.ResolvedPins
) -> None:
    from builder.pins import vendored

    vendored.keep_vendored(Project(tmp_path / "project"), "one", pinned.pins, pinned.patches)
    assert vllm.requests_of(lambda: fetch(tmp_path, definition, pinned.pins, [])) == 0


@pytest.mark.long
def test_another_patch_than_the_pinned_one_is_an_error(
    tmp_path: Path, definition: image.ImageDefinition, pinned: pinning.ResolvedPins
) -> None:
    pin = pinned.pins.sources["vllm"]
    assert isinstance(pin, GitPin)
    other = replace(pin, patches=(SourcePatch("40898", pin.patches[0].head, "d" * 64), pin.patches[1]))
    with pytest.raises(
        LockError, match="pull request 40898 of .* now gives a different patch, .* but dddddddddddd is pinned"
    ):
        fetch(tmp_path, definition, Pins(BASE, {"vllm": other}), [])


@pytest.mark.long
def test_what_upstream_no_longer_has_is_said(
    tmp_path: Path, vllm: Vllm, definition: image.ImageDefinition, pinned: pinning.ResolvedPins
) -> None:
    repository = vllm.history.repository
    repository.git("update-ref", "-d", "refs/pull/40898/head")
    repository.git("prune", "--expire=now")
    with pytest.raises(
        LockError, match="does not have the patch of pull request 40898 .* it cannot be fetched"
    ) as caught:
        fetch(tmp_path, definition, pinned.pins, [])
    assert "restore the file with git" in caught.value.hint

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError
from builder.definitions import image
from builder.definitions.image import ServeSettings
from tests import projects, shipped_files

if TYPE_CHECKING:
    from pathlib import Path


def test_the_defaults_suit_a_gpu(tmp_path: Path) -> None:
    assert image.serve_settings(projects.make(tmp_path), "small") == ServeSettings("all", "host", "host", "16g")
    assert image.serve_settings(projects.make(tmp_path / "b"), "gone") == ServeSettings()


def test_a_definition_inherits_from_its_parents(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    file = tmp_path / "dockerfiles/small/image.yaml"
    parent = file.read_text(encoding="utf-8") + "serve: {gpus: none, ipc: private, shm_size: 2g}\n"
    projects.write(file, parent)
    child = "repository: up\ndescription: d\nplatform: host\nfrom: small\nserve: {shm_size: 1g}\n"
    projects.write(tmp_path / "dockerfiles/up/image.yaml", child)
    assert image.serve_settings(project, "up") == ServeSettings("none", "host", "private", "1g")


def test_an_argument_of_the_template_keeps_the_entrypoint_and_children_inherit_it(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    file = tmp_path / "dockerfiles/small/image.yaml"
    projects.write(file, file.read_text(encoding="utf-8").replace("greeting: hello", "keep_entrypoint: true"))
    child = "repository: up\ndescription: d\nplatform: host\nfrom: small\n"
    projects.write(tmp_path / "dockerfiles/up/image.yaml", child)
    assert image.serve_settings(project, "up").keep_entrypoint
    projects.write(tmp_path / "dockerfiles/up/image.yaml", f"{child}args: {{keep_entrypoint: false}}\n")
    assert not image.serve_settings(project, "up").keep_entrypoint


@pytest.mark.parametrize("text", ["serve: {gpus: 2}", "serve: {shm_size: lots}", "serve: {privileged: true}"])
def test_what_cannot_be_meant_is_refused(tmp_path: Path, text: str) -> None:
    project = projects.make(tmp_path)
    file = tmp_path / "dockerfiles/small/image.yaml"
    projects.write(file, file.read_text(encoding="utf-8") + text + "\n")
    with pytest.raises(FileProblemsError, match=r"dockerfiles/small/image\.yaml:6:"):
        image.serve_settings(project, "small")


def test_the_shipped_images_need_a_gpu_but_one() -> None:
    project = shipped_files.project()
    assert image.serve_settings(project, "cpu").gpus == "none"
    assert image.serve_settings(project, "flashqla") == ServeSettings()

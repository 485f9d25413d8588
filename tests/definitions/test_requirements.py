from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError
from builder.definitions import image
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path


PYTHON = """\
sources:
  vllm: {{wheel: vllm=={version}}}
python:
  version: "3.12"
  packages:
    - transformers>=5
    - {package}
  build: [cmake, "{build}"]
"""


def check(root: Path, version: str, package: str, build: str) -> None:
    project = projects.make(root)
    text = projects.IMAGE.format(repository="small") + PYTHON.format(version=version, package=package, build=build)
    projects.write(root / "dockerfiles/small/image.yaml", text)
    image.check(project, image.load_image(project, "small", "linux/amd64"))


def test_what_an_installer_takes_is_no_problem(tmp_path: Path) -> None:
    check(tmp_path, "0.19.1", "\"ray[default]; python_version > '3.8'\"", "x @ https://example.org/x.whl")


def test_every_other_is_reported_with_its_location(tmp_path: Path) -> None:
    with pytest.raises(FileProblemsError) as caught:
        check(tmp_path, "0..1", "fast safetensors", "ninja>>1")
    lines = str(caught.value).splitlines()
    locations = [line.partition(": ")[0].removeprefix("dockerfiles/small/image.yaml:") for line in lines]
    assert locations == ["7:10", "12:7", "13:18"]
    assert all(": not a requirement: " in line for line in lines)

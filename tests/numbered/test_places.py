from __future__ import annotations

from pathlib import Path

from builder.lock.model import Lock, Repository
from builder.lock.pins import Pins
from builder.numbered import places
from tests import projects


def test_every_definition_gets_a_place_and_nothing_else_changes(tmp_path: Path) -> None:
    project = projects.make(tmp_path, "vllm-node-small")
    projects.write(tmp_path / "dockerfiles/broken/image.yaml", "repository: [\n")
    known = Lock(pins={"other": {"linux/arm64": Pins()}}, images={"gone": Repository(next=3)})
    reserved = places.reserve(project, known)
    assert reserved.pins == {**known.pins, "small": {}}
    assert reserved.images == {**known.images, "vllm-node-small": Repository()}
    assert places.reserve(project, reserved) == reserved

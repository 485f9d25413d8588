from __future__ import annotations

from typing import TYPE_CHECKING

from builder.lock.model import Lock, Repository
from builder.lock.pins import Pins
from builder.numbered import reserved_slots
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path


def test_every_definition_gets_a_place_and_nothing_else_changes(tmp_path: Path) -> None:
    project = projects.make(tmp_path, "vllm-node-small")
    projects.write(tmp_path / "dockerfiles/broken/image.yaml", "repository: [\n")
    lock = Lock(pins={"other": {"linux/arm64": Pins()}}, images={"gone": Repository(next=3)})
    reserved = reserved_slots.added(project, lock)
    assert reserved.pins == {**lock.pins, "small": {}}
    assert reserved.images == {**lock.images, "vllm-node-small": Repository()}
    assert reserved_slots.added(project, reserved) == reserved

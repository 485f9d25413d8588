"""Numbers with their build directories, written from plans: what builds leave behind, without the builds."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.base.project import Project
from builder.definitions import mod
from builder.definitions.mod import Mod
from builder.engine import images
from builder.engine.client import Endpoint
from builder.lock.model import ImageName, Lock, NumberedImage, Repository
from builder.plan.plan_model import Plan
from tests import locks, projects, shipped_files

if TYPE_CHECKING:
    from collections.abc import Mapping


def baked(name: str, files: Mapping[str, str]) -> Mod:
    """A mod of these files, the ``.sh`` ones executable."""
    shipped = mod.load_mod(shipped_files.project(), "fix-qwen3.5-enhanced-chat-template")
    staged = (
        replace(shipped.files[0], path=path, executable=path.endswith(".sh"), content=text.encode())
        for path, text in sorted(files.items(), key=lambda file: Path(file[0]))
    )
    return replace(shipped, name=name, files=tuple(staged))


def image(plan: Plan, **values: Any) -> NumberedImage:
    """The record in images.lock of an image built from ``plan``."""
    facts: dict[str, Any] = {
        "built": "2026-11-20T22:00:00Z",
        "definition": plan.definition.name,
        "platform": plan.definition.platform,
        "fingerprint": f"sha256:{'f' * 64}",
        "input_hash": plan.input_hash,
        "size": 19_000_000_000,
        "versions": plan.versions,
        "mods": {mod.name: mod.content_hash for mod in plan.mods},
    }
    return NumberedImage(**{**facts, **values})


def write(folder: Path, plan: Plan) -> None:
    """The build directory of ``plan``."""
    for path, file in plan.files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.content)
        place.chmod(0o755 if file.executable else 0o644)


@dataclass
class Kept:
    """A project whose numbers are recorded and never built."""

    project: Project
    lock: Lock

    def add(self, plan: Plan, **values: Any) -> ImageName:
        """The next number, with its build directory; ``said`` replaces what images.lock records."""
        record = self.lock.images.get(plan.repository, Repository())
        name = ImageName(plan.repository, record.next)
        numbers = {**record.numbers, name.number: image(plan, **values)}
        self.write(self.lock.with_repository(name.repository, Repository(record.next + 1, name.number, (), numbers)))
        write(self.folder(name), plan)
        return name

    def write(self, lock: Lock) -> None:
        """Makes images.lock say ``lock``."""
        self.lock = lock
        locks.write_lock(self.project.root, lock)

    def folder(self, name: ImageName) -> Path:
        """The build directory of a number."""
        return self.project.builds / name.repository / str(name.number)


def start(root: Path) -> Kept:
    """An empty project at ``root``."""
    (root / "dockerfiles").mkdir(parents=True, exist_ok=True)
    return Kept(Project(root), Lock())


def killed_before_latest(project: Project, endpoint: Endpoint, repository: str, number: int) -> None:
    """Leaves things as a process does that is killed once a number is in images.lock, before ``latest`` has moved."""
    engine_id = images.image_tags(endpoint, [repository])[f"{repository}:{number}"]
    noted = {"repository": repository, "number": number, "engine_id": engine_id}
    projects.write(project.journal / f"{repository}.json", json.dumps(noted))
    images.remove_extra_tag(endpoint, f"{repository}:latest")
    projects.write(project.work / f"{repository}-1/build/Dockerfile", "")
    images.tag_image(endpoint, engine_id, f"builder-work:{repository}-1")


def require_in_line(project: Project, endpoint: Endpoint, repository: str, number: int) -> None:
    """``latest`` has moved to ``number``, and nothing tells any more that a process was killed."""
    assert not project.unfinished
    tags = images.image_tags(endpoint, [repository, "builder-work"])
    assert tags[f"{repository}:latest"] == tags[f"{repository}:{number}"]
    assert f"builder-work:{repository}-1" not in tags

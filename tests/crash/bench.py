"""A bench on which a command is ended again and again: a project, a home, and images, which are put back each time."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.base.errors import BuilderError
from builder.base.project import Project
from builder.engine import client, containers, images
from builder.engine.client import Endpoint, environment
from builder.lock import layout, lock_file
from builder.lock.model import Lock
from builder.numbers import claims
from tests import program, shared
from tests.conftest import command, remove_all
from tests.crash import supervision
from tests.crash.places import Place, Places
from tests.crash.supervision import Ended, Fate

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_CHANCE = re.compile(r"[0-9a-f]{6,}|\d+")
_ID = re.compile(r"[0-9a-f]{32}")
_LARGE = 1 << 15  # bytes; a tar that several threads write has no certain order
_KINDS = {"containers": "/containers/json", "volumes": "/volumes", "networks": "/networks"}


@dataclass(frozen=True)
class State:
    """All that a command may change. ``files`` are those that a user sees, by path, with their content; ``others`` the
    names of all others, in the state folder, the home and the folder for temporary files, without what is chance in
    them; ``tags`` have the fingerprints of their images; ``engine`` is what else the engine has."""

    files: Mapping[str, str]
    others: frozenset[str]
    tags: Mapping[str, str]
    engine: tuple[str, ...]
    lock: Mapping[str, str]
    damage: str = ""


@dataclass
class Bench:
    """``root`` has all that commands may write: ``project``, ``home`` and ``tmp``."""

    root: Path
    endpoint: Endpoint | None = None
    repository: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    _saved: dict[str, str] = field(default_factory=dict)
    _volumes_saved: dict[str, Mapping[str, str]] = field(default_factory=dict)
    _kept: str = ""

    @property
    def project(self) -> Project:
        return Project(self.root / "project")

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGINGFACE_"))}
        engine = environment(self.endpoint) if self.endpoint else {"DOCKER_HOST": "tcp://127.0.0.1:9"}
        own = {"HOME": str(self.root / "home"), "TMPDIR": str(self.root / "tmp"), "PYTHONDONTWRITEBYTECODE": "1"}
        return {**kept, **engine, **own, "COLUMNS": "200", **self.variables}

    def run(self, *arguments: str) -> Ended:
        """Runs the command to its end, as a user would."""
        done = program.run(command(self.project, *arguments), env=self.environ, cwd=self.root)  # fmt: skip
        return Ended(done.returncode, done.stdout, done.stderr)

    def must(self, *arguments: str) -> None:
        """Runs a command that has to end well."""
        ended = self.run(*arguments)
        assert ended.code == 0, f"{arguments}: {ended}"

    def supervised(self, arguments: Sequence[str], decide: Callable[[int, Place], Fate]) -> tuple[Ended, list[Place]]:
        """Runs the command with a decision about each place; returns the places that it came to as well."""
        places = Places(self.root, decide)
        argv = [sys.executable, "-m", "builder", "--project", str(self.project.root), *arguments]
        return supervision.run(argv, self.environ, self.root, places.decide), places.found

    def save(self) -> None:
        """Notes what `restore` puts back."""
        for name in ("home", "tmp"):
            (self.root / name).mkdir(exist_ok=True)
        shutil.copytree(self.root, self._copy, symlinks=True)
        if self.endpoint:
            self._kept = shared.unique_name()
            shared.remove_at_end(self._kept)
            self._saved, self._volumes_saved = self._tags(), self._volumes()
            for number, id_ in enumerate(self._saved.values()):
                images.tag_image(self.endpoint, id_, f"{self._kept}:{number}")

    def forget(self) -> None:
        """Removes what `save` noted, so that it may be called again."""
        shutil.rmtree(self._copy, ignore_errors=True)
        if self.endpoint and self._kept:
            remove_all(self.endpoint, self._kept)
        self._saved, self._kept = {}, ""

    def restore(self) -> None:
        """Puts back what was there at `save`."""
        # The project's folder itself stays: another one would be another project.
        for path in [path for name in self.root.iterdir() for path in name.iterdir()]:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        shutil.copytree(self._copy, self.root, symlinks=True, dirs_exist_ok=True)
        if self.endpoint:
            now = self._tags()
            for name in now.keys() - self._saved.keys():
                images.remove_image(self.endpoint, name)
            for name, id_ in self._saved.items():
                if now.get(name) != id_:
                    images.tag_image(self.endpoint, id_, name)
            volumes_now = self._volumes()
            for name in volumes_now.keys() - self._volumes_saved.keys():
                containers.remove_volume(self.endpoint, name)
            for name, labels in self._volumes_saved.items():
                if volumes_now.get(name) != labels:
                    containers.remove_volume(self.endpoint, name)
                    containers.create_volume(self.endpoint, name, labels)

    def set_free(self, number: int) -> None:
        """Takes back the claim of a number, as if this engine had never had it."""
        assert self.endpoint
        for name, labels in self._volumes().items():
            if claims.number_of(labels) == number or claims.NEXT in labels:
                containers.remove_volume(self.endpoint, name)

    def state(self) -> State:
        """What is there now."""
        files, others = {}, set()
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            if not path.is_symlink() and path.is_dir() and any(path.iterdir()):
                continue
            empty = path.is_dir() and not path.is_symlink()
            hidden = (
                empty
                or not name.startswith("project/")
                or any(part.startswith(".") for part in path.relative_to(self.root).parts)
            )
            if name.startswith("home/.docker/"):  # Docker's own
                continue
            if hidden:
                others.add(_CHANCE.sub("#", name))
            elif path == self.project.lock:
                continue
            else:
                files[name.removeprefix("project/")] = _content(path)
        lock, damage = _lock(self.project)
        return State(files, frozenset(others), self._fingerprints(), self._rest(), lock, damage)

    @property
    def _copy(self) -> Path:
        return self.root.with_name(f"{self.root.name}-saved")

    def _tags(self) -> dict[str, str]:
        assert self.endpoint
        found = images.image_tags(self.endpoint, [self.repository, f"{self.repository}-*", "builder-work"])
        return {name: id_ for name, id_ in found.items() if self.repository in name}

    def _volumes(self) -> dict[str, Mapping[str, str]]:
        """The volumes by which the project claims numbers, with their labels."""
        assert self.endpoint
        of_all = containers.labelled_volumes(self.endpoint, [claims.KIND])
        return {name: labels for name, labels in of_all.items() if self._is_ours(str((name, labels)))}

    def _is_ours(self, text: str) -> bool:
        return self.repository in text or str(self.root) in text

    def _fingerprints(self) -> dict[str, str]:
        if not self.endpoint:
            return {}
        found = {name: images.inspect_image(self.endpoint, name) for name in self._tags()}
        return {_CHANCE.sub("#", name) if name.startswith("builder-work") else name: images.fingerprint(details)
                for name, details in found.items() if details}  # fmt: skip

    def _rest(self) -> tuple[str, ...]:
        if not self.endpoint:
            return ()
        found = []
        for kind, path in _KINDS.items():
            query = {"all": 1} if kind == "containers" else None
            answer = json.loads(client.raw(self.endpoint, "GET", path, query=query))
            listed: list[dict[str, Any]] = (answer.get("Volumes") if kind == "volumes" else answer) or []
            entries = [str(entry.get("Name") or entry.get("Names")) for entry in listed if self._is_ours(str(entry))]
            found += [f"{kind}: {_ID.sub('#', name)}" for name in entries]
        return tuple(sorted(found))


def _content(path: Path) -> str:
    if path.is_symlink():
        return f"link to {path.readlink()}"
    if path.stat().st_size > _LARGE:
        return f"{path.stat().st_size} bytes"
    mode = "executable: " if path.stat().st_mode & 0o100 else ""
    return mode + _TIME.sub("TIME", path.read_text(encoding="utf-8", errors="backslashreplace"))


def _lock(project: Project) -> tuple[dict[str, str], str]:
    """Every value of images.lock by its path, without what is chance; and why it cannot be read."""
    try:
        lock = lock_file.read_lock(project.lock)
    except BuilderError as error:
        return {}, str(error)
    if lock == Lock() and not project.lock.exists():
        return {}, ""
    serving = {f"/serving/{name}": str(model.pairing.image) for name, model in lock.models.items()}
    contents = {
        f"/images/{name}/{number}/content": image.fingerprint
        for name, repository in lock.images.items()
        for number, image in repository.numbers.items()
    }
    return {**dict(_leaves(layout.data_of(lock))), **serving, **contents}, ""


def _leaves(value: object, path: str = "") -> list[tuple[str, str]]:
    items: list[tuple[object, object]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    if not items:
        return [(path, _TIME.sub("TIME", str(value)))]
    return [leaf for key, inner in items for leaf in _leaves(inner, f"{path}/{key}")]

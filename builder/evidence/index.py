"""The last runs of every number and the facts of recipes, remembered between commands: reading and checking
four thousand files takes half a second.

The memory is in the state folder, and may vanish. What it tells counts while the state of the files that it was made
from is the one that was seen: time of change (ctime), size and inode, as in git's index.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from builder.errors import FileProblemsError
from builder.evidence import document, store
from builder.evidence.present_subjects import RequiredRuns, ServedFacts
from builder.evidence.store import KeptEvidence
from builder.storage import regular_file, state_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from builder.evidence.record import Kind
    from builder.lock.model import ImageName
    from builder.project import Project

_LARGEST = 64 * 1024 * 1024
_NOT_REMEMBERED = "a folder that cannot be read, or is a link"
# What makes the facts of recipes and the digests of probes, and reads the runs: another version may do so otherwise.
_PROGRAM = tuple(Path(__file__).parents[1] / part for part in ("evidence", "definitions/recipes", "measuring"))

SetNow: TypeAlias = "Callable[[Kind, str], str | None]"


class EvidenceIndex:
    """The memory of a project, read once; ``save`` keeps what was learnt meanwhile."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._program = [_state_of_folder(str(folder)) for folder in _PROGRAM]
        remembered = _remembered(_path(project))
        is_ours = remembered.get("program") == self._program
        self._images = _block(remembered, "images") if is_ours else {}
        self._recipes = _block(remembered, "recipes") if is_ours else {}
        self._required = _block(remembered, "required") if is_ours else {}
        self._sets = _block(remembered, "sets") if is_ours else {}
        self._is_changed = False
        self._links = {str(project.root): False}

    def last_runs(self, name: ImageName) -> KeptEvidence:
        """The last run of each kind, name and model of an image, those of others apart, without their results; with the
        problems of files that are no evidence."""
        state = self._state(name)
        if not state:
            return KeptEvidence()
        remembered = _runs(self._images.get(str(name)), state)
        if remembered is not None:
            return remembered
        kept = store.look(self._project, name)
        if state != _NOT_REMEMBERED and not kept.problems:
            last = store.last_runs(kept)
            outlines = [document.of_outline(run) for run, _ in last]
            self._images[str(name)] = {"state": state, "runs": outlines, "files": [file for _, file in last]}
            self._is_changed = True
        return kept

    def recipe(self, file: str, environ: Mapping[str, str]) -> ServedFacts | None:
        """The facts of a recipe that images.lock names; None where it is gone, or cannot be read."""
        state = _state_of_file(self._project.root / file)
        entry = self._recipes.get(file)
        if state and isinstance(entry, dict) and entry.get("state") == state:
            try:
                return ServedFacts(**{**entry["facts"], "requires": _requires(entry["facts"]["requires"])})
            except (KeyError, TypeError):
                pass
        from builder.evidence import subjects

        facts = subjects.of_recorded_recipe(self._project, file, environ)
        if state and facts and facts.is_whole:
            self._recipes[file] = {"state": state, "facts": {**vars(facts), "requires": vars(facts.requires)}}
            self._is_changed = True
        return facts

    def required_of(self, model: str | None) -> RequiredRuns:
        """The runs that builder.yaml requires of images for a model; none where it cannot be read, which every command
        that decides by it tells."""
        path = self._project.root / "builder.yaml"
        state = _state_of_file(path)
        if not state:
            return RequiredRuns()
        if self._required.get("state") != state:
            self._required = {"state": state, "models": {}}
        models, key = self._required["models"], model or ""
        try:
            return _requires(models[key])
        except (KeyError, TypeError):
            pass
        from builder.definitions import configuration

        try:
            wanted = configuration.load(self._project).required_of(model)
        except FileProblemsError:
            return RequiredRuns()
        requires = RequiredRuns(wanted.probes, bool(wanted.figures))
        models[key] = vars(requires)
        self._is_changed = True
        return requires

    def set_now(self, kind: Kind, name: str, sets: SetNow) -> str | None:
        """The digest of a probe or a profile as it is now, by ``sets`` where it may be another than remembered."""
        if kind == "prove":
            return sets(kind, name)
        source = self._project.root / ("builder.yaml" if kind == "bench" else f"probes/{name}")
        state = _state_of_tree(source) if kind == "probe" else repr(_state_of_file(source))
        key = f"{kind} {name}"
        entry = self._sets.get(key)
        if isinstance(entry, dict) and entry.get("state") == state:
            digest = entry.get("digest")
            return digest if isinstance(digest, str) else None
        digest = sets(kind, name)
        self._sets[key] = {"state": state, "digest": digest}
        self._is_changed = True
        return digest

    def save(self) -> None:
        """Keeps what was learnt for the next command."""
        if self._is_changed:
            content = {"program": self._program, "images": self._images, "recipes": self._recipes}
            content |= {"required": self._required, "sets": self._sets}
            state_file.write(_path(self._project), json.dumps(content, separators=(",", ":")).encode())

    def _state(self, name: ImageName) -> str:
        """The state of all files in the folder of an image; empty where there are none."""
        folder = f"{self._project.evidence}/{name.repository}/{name.number}"
        return _NOT_REMEMBERED if self._leads_elsewhere(folder) else _state_of_folder(folder)

    def _leads_elsewhere(self, folder: str) -> bool:
        """True if a link is among the folder and those above it, up to the project's own."""
        if folder not in self._links:
            above = folder.rpartition("/")[0]
            self._links[folder] = Path(folder).is_symlink() or self._leads_elsewhere(above)
        return self._links[folder]


def _path(project: Project) -> Path:
    return project.raw_evidence.parent / "index.json"


def _remembered(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(regular_file.read(path, _LARGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _block(data: dict[str, Any], key: str) -> dict[str, Any]:
    block = data.get(key)
    return block if isinstance(block, dict) else {}


def _requires(data: dict[str, Any]) -> RequiredRuns:
    return RequiredRuns(tuple(data["probes"]), bool(data["has_figures"]))


def _runs(entry: Any, state: str) -> KeptEvidence | None:
    """The runs that are remembered of an image; None where its files are others now."""
    try:
        if entry["state"] != state or len(entry["runs"]) != len(entry["files"]):
            return None
        runs = tuple(document.read_outline(run) for run in entry["runs"])
        return KeptEvidence(runs, files=tuple(map(str, entry["files"])))
    except (KeyError, TypeError, AttributeError):
        return None


def _state_of_folder(folder: str) -> str:
    """The state of all files in a folder as text; empty where there are none."""
    try:
        with os.scandir(folder) as entries:
            states = sorted((entry.name, *_state(entry.stat(follow_symlinks=False))) for entry in entries)
    except FileNotFoundError:
        return ""
    except OSError:
        return _NOT_REMEMBERED
    import hashlib

    return hashlib.sha256(repr(states).encode(errors="replace")).hexdigest() if states else ""


def _state_of_tree(folder: Path) -> str:
    """The state of all files below a folder as text; empty where there is none."""
    import hashlib

    states = [
        (name, *_state_of_file(Path(place, name)))
        for place, _, files in os.walk(folder)
        if not place.endswith("__pycache__")
        for name in [place, *files]
    ]
    return hashlib.sha256(repr(sorted(map(repr, states))).encode(errors="replace")).hexdigest() if states else ""


def _state_of_file(path: Path) -> list[int]:
    """The state of a file and of what it may be a link to; empty where there is none."""
    try:
        return [*_state(path.lstat()), *_state(path.stat())]
    except OSError:
        return []


def _state(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_mode, status.st_ino, status.st_size, status.st_ctime_ns

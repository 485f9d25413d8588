"""What the engine has under the names of repositories, asked in a way that costs little the second time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.engine import images, tag_cache

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.workspace import Workspace


@dataclass(frozen=True)
class Contents:
    """``tags`` has the engine's id of the image behind each tag of the repositories, ``fingerprints`` those of the
    numbered images that were asked for and are there, by name."""

    tags: dict[str, str]
    fingerprints: dict[str, str]


def look(workspace: Workspace, repositories: Iterable[str], names: Iterable[str]) -> Contents:
    """What the engine has of ``names`` (``repository:number``). ``repositories`` are all those of images.lock: for
    others the engine has to be asked for everything again.

    The engine is asked what happened since it was last asked, and for content that it has not named before. Raises
    EngineError where none answers.
    """
    wanted = list(names)
    if not wanted:
        return Contents({}, {})
    cache = workspace.project.state / "engine.json"
    tags = tag_cache.tags(workspace.engine, repositories, cache)
    held = {name: tags[name] for name in wanted if name in tags}
    known = images.fingerprints(workspace.engine, held.values(), cache)
    return Contents(tags, {name: known[id_] for name, id_ in held.items() if id_ in known})

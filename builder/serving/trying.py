"""Mods that are tried without a build: a server's containers apply them before they serve.

A container waits after its start until each mod was applied in it by the script that bakes it, and passed its checks.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.base.errors import UsageError
from builder.base.events import Message
from builder.definitions import mod
from builder.engine import containers, installed
from builder.plan import rules
from builder.plan.plan_model import WORKSPACE
from builder.serving.running import TRIED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.definitions.container import ContainerSettings
    from builder.definitions.mod import Mod
    from builder.engine.client import Endpoint
    from builder.numbers.workspace import Workspace

_APPLIED = "/run/builder-tried"
# Once the mark is there, the server takes the place of the shell, also when the engine restarts the container.
_WAIT = """\
trap 'exit 143' TERM INT
[ -e "$0" ] || echo "waiting until builder has applied the mods that are tried"
until [ -e "$0" ]; do sleep 0.1; done
trap - TERM INT
cd "$1"
shift
exec "$@"
"""


def load_tried(workspace: Workspace, engine: Endpoint, names: Sequence[str], image_name: str) -> tuple[Mod, ...]:
    """The mods ``names`` in the order in which they are applied to an image of ``engine``. Raises FileProblemsError for
    one that does not fit the others or what is installed; UsageError for an unknown one, and for one that can only act
    on the machine."""
    project = workspace.project
    mods = mod.load_all(project, dict.fromkeys(map(mod.name_of, names)))
    for each in mods:
        if (facts := mod.read_script_facts(each)) and facts.instead:
            raise UsageError(f"mod {each.name} cannot be applied to an image: {facts.instead}")
        if each.run and not each.network:
            workspace.report(Message(f"mod {each.name} has the server's network here, and none in a build"))
    software = installed.read_installed(engine, image_name, containers.reading_labels())
    pinned = {**software.packages, "python": software.python}
    pinned |= {name: package.version for name, package in software.sources.items()}
    mods = rules.arrange_steps([rules.ImageMods(image_name, mods, pinned)], mod.mod_names(project))[0]
    mod.require_templates(mods)
    return mods


def waiting(settings: ContainerSettings, mods: Sequence[Mod]) -> ContainerSettings:
    """The same container, which serves once the ``mods`` were applied in it."""
    own = {name: value for each in mods for name, value in each.env.items()}
    return replace(
        settings,
        argv=("/bin/sh", "-c", _WAIT, mark(mods), WORKSPACE, *settings.argv),
        env={**own, **settings.env},
        labels={**settings.labels, TRIED: json.dumps([each.name for each in mods])},
    )


def mark(mods: Sequence[Mod]) -> str:
    """The path that a container waits for. It differs with what the mods hold."""
    content = json.dumps([(each.name, each.content_hash) for each in mods])
    return f"{_APPLIED}/{hashlib.sha256(content.encode()).hexdigest()[:12]}"

"""What `builder run` adds to the `docker run` that it stands for, with a stand-in for the server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measuring import Row, Table, in_turn, run
from benchmarks.stage import BUILDER, Stage
from builder.engine import containers, services
from builder.engine.client.endpoint import environment
from tests.commands import serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def tables(stage: Stage, runs: int) -> Iterator[Table]:
    """Starting a container of a recipe."""
    built = serving.make(stage.root / "served", f"{stage.prefix}-served")
    stage.builder(built, "build", "chat")
    kitchen = serving.kitchen(built, Path(stage.root, "kitchen"), f"{stage.prefix}-served")
    environ = {**os.environ, **kitchen.environ, **environment(stage.endpoint)}
    script = str(kitchen.project.root / "serve.sh")

    def starting(*argv: str) -> Callable[[], None]:
        def start() -> None:
            run(argv, kitchen.project.root, environ)
            service = services.find(stage.endpoint, kitchen.name)
            if service:
                containers.remove(stage.endpoint, service.id)

        return start

    run([BUILDER, "export", "chat", "--format", "script", "--output", script], kitchen.project.root, environ)
    ours, theirs = in_turn(runs, starting(BUILDER, "run", "chat", "--detach"), starting(script))
    yield Table(
        "Serving",
        "Until the container runs, and removing it again. The plain script is what `builder export` wrote.",
        [Row("`builder run --detach`", ours, "`docker run --detach`", theirs)],
    )

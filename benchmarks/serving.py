"""Compares `builder run` with a plain `docker run`; the server is a stand-in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measuring import Row, Table, in_turn, run
from benchmarks.sandbox import BUILDER, Sandbox
from builder.engine import containers
from builder.engine.client import environment
from tests import hubcache
from tests.commands import serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def tables(sandbox: Sandbox, runs: int) -> Iterator[Table]:
    """Measures the start of a recipe's container."""
    built = serving.make(sandbox.root / "served", f"{sandbox.prefix}-served")
    sandbox.builder(built, "build", "chat")
    kitchen = serving.kitchen(built, Path(sandbox.root, "kitchen"), f"{sandbox.prefix}-served")
    # Otherwise `run` would ask the Hugging Face Hub for the model.
    hubcache.add(Path(kitchen.environ["HOME"], ".cache/huggingface"), serving.MODEL)
    environ = {**os.environ, **kitchen.environ, **environment(sandbox.endpoint)}
    script = str(kitchen.project.root / "serve.sh")

    def starting(*argv: str) -> Callable[[], None]:
        def start() -> None:
            run(argv, kitchen.project.root, environ)
            service = containers.find_container(sandbox.endpoint, kitchen.name)
            if service:
                containers.remove_container(sandbox.endpoint, service.id)

        return start

    run([BUILDER, "export", "chat", "--format", "script", "--output", script], kitchen.project.root, environ)
    ours, theirs = in_turn(runs, starting(BUILDER, "run", "chat", "--detach"), starting(script))
    yield Table(
        "Serving",
        "Until the container runs, and its removal. `builder export` wrote the plain script.",
        [Row("`builder run --detach`", ours, "`docker run --detach`", theirs)],
    )

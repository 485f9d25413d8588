"""Measures what `builder run` adds to the `docker run` that it stands for, with a stand-in for the server.

    .venv/bin/python benchmarks/serving.py [RUNS]

Prints a Markdown table of medians and ranges, in milliseconds. Everything it makes in the engine is gone afterwards.
"""

from __future__ import annotations

import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from builder.engine import containers, services
from builder.engine import endpoint as endpoints
from builder.engine.endpoint import Endpoint, environment
from tests.conftest import command, remove_all
from tests.verbs import serving
from tests.verbs.serving import Kitchen


def timed(argv: list[str], environ: dict[str, str]) -> float:
    """Milliseconds that a command takes."""
    began = time.perf_counter()
    subprocess.run(argv, env=environ, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000


def measure(endpoint: Endpoint, kitchen: Kitchen, runs: int) -> dict[str, list[float]]:
    """Each run starts the container both ways, the ones of the first round not counted."""
    environ = {**os.environ, **kitchen.environ, **environment(endpoint)}
    script = str(kitchen.project.root / "serve.sh")
    subprocess.run(
        command(kitchen.project, "export", "chat", "--format", "script", "--output", script), env=environ, check=True
    )
    starts = {
        "builder run --detach": command(kitchen.project, "run", "chat", "--detach"),
        "docker run --detach": [script],
    }
    found: dict[str, list[float]] = {what: [] for what in starts}
    for _ in range(runs + 1):
        for what, argv in starts.items():
            found[what].append(timed(argv, environ))
            service = services.find(endpoint, kitchen.name)
            if service:
                containers.remove(endpoint, service.id)
    return {what: times[1:] for what, times in found.items()}


def main(runs: int) -> None:
    endpoint = endpoints.find(os.environ)
    repository = f"builder-bench-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        built = serving.make(Path(folder, "built"), repository)
        try:
            subprocess.run(command(built, "build", "chat"), check=True, capture_output=True)
            found = measure(endpoint, serving.kitchen(built, Path(folder, "project"), repository), runs)
        finally:
            remove_all(endpoint, repository)
    print("| command | median | range |")
    print("|---|---|---|")
    for what, times in found.items():
        print(f"| `{what}` | {statistics.median(times):.0f} ms | {min(times):.0f} to {max(times):.0f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)

"""Measures what takes longer the longer images.lock is, with 1,000 numbered images and 50 models.

    .venv/bin/python benchmarks/large_lock.py [RUNS]

Prints a Markdown table of medians and ranges, in milliseconds. All numbers name one small image: what is measured is
this program and its questions to the engine. Everything that it makes in the engine is gone afterwards.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.everyday import BUILDER, many_images, measure, row, run
from builder.engine import endpoint as endpoints
from builder.engine import images
from builder.lock import reading, writing
from builder.project import Project
from tests import projects

IMAGES, MODELS = 1000, 50


def main(runs: int) -> None:
    endpoint = endpoints.find(os.environ)
    repository = f"builder-bench-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory() as folder:
        project = projects.make(Path(folder), repository)
        try:
            many_images(endpoint, project, repository, distinct=False, entries=IMAGES, served=MODELS)
            print("| what | median ms | range |\n|---|---|---|", flush=True)
            measure_all(project, repository, runs)
        finally:
            for tag in images.tags(endpoint, [repository]):
                images.remove(endpoint, tag)


def measure_all(project: Project, repository: str, runs: int) -> None:
    root = project.root
    row("`builder list`", measure(lambda: run([BUILDER, "list"], root), runs))
    row("`builder list --models`", measure(lambda: run([BUILDER, "list", "--models"], root), runs))
    row("`builder list --json`", measure(lambda: run([BUILDER, "list", "--json"], root), runs))
    row(
        f"`builder show IMAGE:{IMAGES // 2}`",
        measure(lambda: run([BUILDER, "show", f"small:{IMAGES // 2}"], root), runs),
    )
    notes = iter(range(10_000))
    mark = [BUILDER, "mark", f"small:{IMAGES}", "good", "--note"]
    row("`builder mark`: one write", measure(lambda: run([*mark, str(next(notes))], root), runs))
    row("`builder rollback`", measure(lambda: run([BUILDER, "rollback", "small"], root), runs))
    row("reading images.lock", measure(lambda: reading.read(project.lock), runs))

    def write() -> None:
        with writing.writing(project.lock) as transaction:
            held = transaction.lock.images[repository]
            to = held.previous[0]
            transaction.commit(transaction.lock.with_repository(repository, held.stepped_back_to(to)))

    row("reading it under the lock, and writing it", measure(write, runs))
    print(f"\nimages.lock: {project.lock.stat().st_size / 1000:.0f} kB; {time.strftime('%Y-%m-%d')}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)

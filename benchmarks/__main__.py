"""Measures everything, or the parts named, and writes docs/benchmarks.md where asked to.

    python -m benchmarks [--runs N] [--write] [everyday] [growth] [second_node] [serving]

Needs root for the further engines of `second_node`, 25 GB of disk, and a quiet machine for about an hour. Everything
that it makes in the engine is gone afterwards, but for what BuildKit keeps in its cache.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import everyday, growth, second_node, serving
from benchmarks.measuring import Grid, Table, markdown
from benchmarks.stage import Stage, stage
from builder.engine import endpoint as endpoints
from builder.engine import versions
from builder.engine.endpoint import Endpoint

Part = Callable[[Stage, int], Iterator[Table | Grid]]
PARTS: dict[str, Part] = {
    "everyday": everyday.tables,
    "serving": serving.tables,
    "growth": growth.tables,
    "second_node": second_node.tables,
}
PAGE = Path(__file__).resolve().parent.parent / "docs/benchmarks.md"


def main() -> None:
    """Measures what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures side by side.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all where none is named")
    parser.add_argument("--runs", type=int, default=5, help="how often each thing is done")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md; takes every part")
    asked = parser.parse_args()
    if unknown := [part for part in asked.parts if part not in PARTS]:
        parser.error(f"no part {unknown[0]}; there are: {', '.join(PARTS)}")
    if asked.write and asked.parts:
        parser.error("--write takes every part")
    endpoint = endpoints.find(os.environ)
    pages = [_head(endpoint, asked.runs)]
    print(pages[0], flush=True)
    for part in asked.parts or PARTS:
        with stage(endpoint) as here:
            for table in PARTS[part](here, asked.runs):
                pages.append(markdown(table))
                print(pages[-1], flush=True)
    if asked.write:
        PAGE.write_text("\n".join(pages), encoding="utf-8")


def _head(endpoint: Endpoint, runs: int) -> str:
    found = versions.usable(endpoint)
    engine = f"engine {found.engine} ({found.store} store), buildx {found.buildx}"
    version = importlib.metadata.version("builder")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    machine = f"{os.cpu_count()} processors ({platform.machine()}), {memory:.0f} GiB of memory"
    return f"""\
# Benchmarks

Written by `make bench` on {datetime.now(UTC):%Y-%m-%d}, in one run: {machine},
{engine}, Python {platform.python_version()}, builder {version}.

A cell is the median of {runs} runs and their range, or of fewer where it says no range. The two things of a row took
turns. `to reach` is what the project wants of itself.
"""


if __name__ == "__main__":
    sys.exit(main())

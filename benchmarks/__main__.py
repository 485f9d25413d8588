"""Runs all benchmarks or the named parts; ``--write`` writes the results into docs/benchmarks.md.

    python -m benchmarks [--runs N] [--write] [everyday] [serving] [growth] [second_node] [checkpoints] [evidence]

Requires root for the additional engines of `second_node` and the dropped caches of `checkpoints`. Also requires 25 GB
of disk and an idle machine for at most 30 minutes. Removes everything that it creates in the engine, except BuildKit's
cache.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import checkpoints, everyday, evidence, growth, second_node, serving
from benchmarks.measuring import Grid, Table, markdown
from benchmarks.sandbox import Sandbox, sandbox
from builder.engine import client as endpoints
from builder.engine import machine
from builder.engine.client import Endpoint

Part = Callable[[Sandbox, int], Iterator[Table | Grid]]
PARTS: dict[str, Part] = {
    "everyday": everyday.tables,
    "serving": serving.tables,
    "growth": growth.tables,
    "second_node": second_node.tables,
    "checkpoints": checkpoints.tables,
    "evidence": evidence.tables,
}
# A part of the page: its name, and the text up to the next part.
_PART = re.compile(r"<!-- (\w+) -->\n(.*?)(?=\n<!-- \w+ -->\n|\Z)", re.DOTALL)
PAGE = Path(__file__).resolve().parent.parent / "docs/benchmarks.md"


def main() -> None:
    """Runs the parts that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures side by side.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all where none is named")
    parser.add_argument("--runs", type=int, default=5, help="how often each thing is done")
    parser.add_argument("--write", action="store_true", help="write these parts into docs/benchmarks.md")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up after SIGTERM, too
    if unknown := [part for part in arguments.parts if part not in PARTS]:
        parser.error(f"no part {unknown[0]}; there are: {', '.join(PARTS)}")
    endpoint = endpoints.find_endpoint(os.environ)
    head = _head(endpoint, arguments.runs)
    print(head, flush=True)
    for part in arguments.parts or PARTS:
        sections = []
        with sandbox(endpoint) as own:
            for table in PARTS[part](own, arguments.runs):
                sections.append(markdown(table))
                print(sections[-1], flush=True)
        if arguments.write:
            _write(head, part, f"Measured on {datetime.now(UTC):%Y-%m-%d}.\n\n" + "\n".join(sections))


def _write(head: str, part: str, text: str) -> None:
    """Replaces one part of the page. Results that were measured by hand are in a part that no function here writes."""
    before = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    parts = dict(_PART.findall(before)) | {part: text}
    page = "".join(f"\n<!-- {name} -->\n{parts[name].strip()}\n" for name in {**PARTS, **parts} if name in parts)
    PAGE.write_text(head + page, encoding="utf-8")


def _head(endpoint: Endpoint, runs: int) -> str:
    supported = machine.require_supported(endpoint)
    engine = f"engine {supported.engine} ({supported.store} store), buildx {supported.buildx}"
    version = importlib.metadata.version("builder")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    hardware = f"{os.cpu_count()} processors ({platform.machine()}), {memory:.0f} GiB of memory"
    return f"""\
# Benchmarks

Written by `make bench`: {hardware},
{engine}, Python {platform.python_version()}, builder {version}.

A cell is the median of at most {runs} runs and their range, or one run. The two things of a row took turns. `to reach`
is the project's own target.
"""


if __name__ == "__main__":
    main()

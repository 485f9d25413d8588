"""Compares making a checkpoint with copying the same bytes to the same disk."""

from __future__ import annotations

import hashlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measuring import RATIO, Row, Table, once
from tests import projects, safetensors_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.sandbox import Sandbox
    from builder.base.project import Project


FILES = 4
TENSORS = 100
TENSOR = 5 << 20
SIZE = FILES * TENSORS * TENSOR
# The target: 0.8 times the speed of the copy.
_REACH = 1.25
_DROP_CACHES = Path("/proc/sys/vm/drop_caches")
_DEFINITION = """\
description: The same tensors in as many files
model: Org/Large
sources: {{all: {{folder: {folder}}}}}
steps: [{{take: all, expect: {count}}}]
output: {{folder: {result}}}
"""


def tables(sandbox: Sandbox, runs: int) -> Iterator[Table]:
    """Measures a build that copies all tensors, with and without the source in the page cache."""
    source, result, copy = (sandbox.root / name for name in ("source", "result", "copy"))
    _write_source(source)
    project = projects.make(sandbox.root / "checkpoints")
    definition = _DEFINITION.format(folder=source, count=FILES * TENSORS, result=result)
    projects.write(project.root / "checkpoints/large/checkpoint.yaml", definition)
    rows = [
        row
        for is_cold in (False, True)
        for row in _rows(sandbox, project, runs, (source, result, copy), is_cold=is_cold)
    ]
    yield Table(
        f"Making a checkpoint of {SIZE / 1e9:.1f} GB",
        f"`checkpoints build` of {FILES} files on one disk, with the SHA-256 of every byte, and `cp` and `sync` of the "
        "same files. Cold: the kernel's caches were dropped first. Digests alone are of bytes in memory, by "
        f"{os.cpu_count()} processors.",
        [*rows, Row("digests alone", [once(_digests) for _ in range(runs)])],
    )


def _rows(
    sandbox: Sandbox, project: Project, runs: int, folders: tuple[Path, Path, Path], *, is_cold: bool
) -> Iterator[Row]:
    source, result, copy = folders
    ours, theirs = [], []
    for _ in range(runs):
        _prepare(source, result, copy, project.checkpoints_lock, is_cold=is_cold)
        ours.append(once(lambda: sandbox.builder(project, "checkpoints", "build", "large")))
        _prepare(source, result, copy, project.checkpoints_lock, is_cold=is_cold)
        theirs.append(once(lambda: sandbox.run(["sh", "-c", f"cp -r {source} {copy} && sync {copy}/*"])))
    where = "cold" if is_cold else "the source in memory"
    yield Row(f"`builder checkpoints build`, {where}", ours, "`cp` and `sync`", theirs, _REACH, RATIO)


def _prepare(source: Path, result: Path, copy: Path, lock: Path, *, is_cold: bool) -> None:
    """Removes the results of the previous run, and waits until the disk has no pending writes."""
    for folder in (result, copy):
        shutil.rmtree(folder, ignore_errors=True)
    lock.unlink(missing_ok=True)
    os.sync()
    if is_cold:
        _DROP_CACHES.write_text("3", encoding="ascii")
        return
    for path in source.iterdir():
        with path.open("rb", buffering=0) as file:
            while file.read(8 << 20):
                pass


def _write_source(folder: Path) -> None:
    folder.mkdir()
    for number in range(1, FILES + 1):
        header = {
            f"model.layers.{number}.{each}.weight": {
                "dtype": "BF16",
                "shape": [TENSOR // 2048, 1024],
                "data_offsets": [each * TENSOR, (each + 1) * TENSOR],
            }
            for each in range(TENSORS)
        }
        with (folder / f"model-{number:05}-of-{FILES:05}.safetensors").open("wb") as file:
            file.write(safetensors_files.raw(header))
            for _ in range(TENSORS):
                file.write(os.urandom(TENSOR))
    projects.write(folder / "config.json", "{}")


def _digests() -> None:
    block = bytes(1 << 20)

    def digest(size: int) -> None:
        whole = hashlib.sha256()
        for _ in range(size // len(block)):
            whole.update(block)

    with ThreadPoolExecutor(FILES) as pool:
        list(pool.map(digest, [SIZE // FILES] * FILES))

"""The examples in a page of these docs: what stands after ``$ `` in its ``console`` blocks, and what that printed.

``normal`` takes out what differs from one run to the next: times, sizes, hashes, and the progress of a build.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ (.*(?:\n> .*)*)\n?", re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """A command and what it prints; ``start`` and ``end`` are where that stands in the page."""

    command: str
    output: str
    start: int
    end: int


def examples(page: str) -> list[Example]:
    """All of ``page``, in order. A line that begins with ``> `` goes on with the command."""
    found = []
    for block in _BLOCK.finditer(page):
        commands = list(_COMMAND.finditer(block[1]))
        ends = [*(command.start() for command in commands[1:]), len(block[1])]
        for command, end in zip(commands, ends, strict=True):
            line = command[1].replace("\n> ", "\n")
            start = block.start(1)
            found.append(Example(line, block[1][command.end() : end].rstrip(), start + command.end(), start + end))
    return found


_PROGRESS = re.compile(r"^ *(?:cached|[\d.]+ s|\d+ min(?: \d+ s)?)  .*\n?", re.MULTILINE)
_VARYING = [
    (re.compile(r"\b\d+ (Python packages|locked)\b"), r"N \1"),
    (re.compile(r"\b\d+ min \d+ s\b|\b\d+(\.\d+)? (s|ms|min|h)\b(?! ago)"), "TIME"),
    (re.compile(r"\bjust now\b|\b\d+ (s|min|h|days?) ago\b"), "AGO"),
    (re.compile(r"\b\d+(\.\d+)? [kMG]?B\b"), "SIZE"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT[\d:]+Z\b"), "DATE"),
    (re.compile(r"\b\d{8}-\d{6}-"), "DATE-"),
    (re.compile(r"\+g[0-9a-f]{7,}\b"), "+gHASH"),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{12,64}\b"), "HASH"),
    (re.compile(r"\b\d+ of \d+ steps cached"), "N steps cached"),
    (re.compile(r"\b(linux/)(amd64|arm64)\b"), "PLATFORM"),
    (re.compile(r"\s+"), " "),  # where a line is folded depends on the rest
]


def normal(output: str) -> str:
    """``output`` as it is in every run."""
    output = _PROGRESS.sub("", output + "\n").rstrip()
    for varying, word in _VARYING:
        output = varying.sub(word, output)
    return output


def filled(page: str, outputs: list[str]) -> str:
    """``page`` with another output for each of its examples, in order."""
    for example, output in reversed(list(zip(examples(page), outputs, strict=True))):
        page = page[: example.start] + (f"{output}\n" if output else "") + page[example.end :]
    return page


def hold(file: Path, run: Callable[[str], str], *, write: bool) -> None:
    """Runs every example of the page in ``file`` by ``run``. Raises AssertionError for the first that prints something
    else than what stands there; where ``write``, it is put there instead."""
    page = file.read_text(encoding="utf-8")
    told = examples(page)
    seen = [run(example.command) for example in told]
    if write:
        file.write_text(filled(page, seen), encoding="utf-8")
        return
    for example, said in zip(told, seen, strict=True):
        if normal(said) != normal(example.output):
            raise AssertionError(f"$ {example.command}\n{said}\n--- {file.name} says\n{example.output}")

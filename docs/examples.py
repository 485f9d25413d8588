"""The examples in a page of these docs: the commands after ``$ `` in its ``console`` blocks, and their output.

``normal`` replaces everything that differs between runs: times, sizes, hashes, and the progress of a build, of which
``steps`` has what is the same in all of them.
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
    """A command and its output; ``start`` and ``end`` are the output's position in the page."""

    command: str
    output: str
    start: int
    end: int


def examples(page: str) -> list[Example]:
    """Returns all examples of ``page``, in order. A line that begins with ``> `` continues the command."""
    page_examples = []
    for block in _BLOCK.finditer(page):
        commands = list(_COMMAND.finditer(block[1]))
        ends = [*(command.start() for command in commands[1:]), len(block[1])]
        for command, end in zip(commands, ends, strict=True):
            line = command[1].replace("\n> ", "\n")
            start = block.start(1)
            output = block[1][command.end() : end].rstrip()
            page_examples.append(Example(line, output, start + command.end(), start + end))
    return page_examples


_PROGRESS = re.compile(
    r"^(?: *(?:cached|[\d.]+ s|\d+ min(?: \d+ s)?)  .*|checking \d+ recipes? with the vLLM of \S+)\n?", re.MULTILINE
)
# A machine without a network, which no reader of these pages has. The line may be folded.
_OFFLINE = re.compile(r"^\S+ is pinned to the image in this\s+engine,.*(?:\n  .*)*?again\n?", re.MULTILINE)
_STEP = re.compile(
    r"^ *(?:cached|[\d.]+ s|\d+ min(?: \d+ s)?)  (\[(?:(?P<stage>\S+) )?\d+/(?P<of>\d+)\] .*)$", re.MULTILINE
)
# Steps that take no time, which are shown in one run and not in another.
_INSTANT = re.compile(r"\[[^\]]*\] (?:FROM|WORKDIR|COPY|ENV|LABEL|ADD) ")
_VARYING = [
    (re.compile(r"\s+"), " "),  # first: the folding of a line depends on the rest
    (re.compile(r"\b\d+ (Python packages|locked)\b"), r"N \1"),
    (re.compile(r"\b\d+ min \d+ s\b|\b\d+(\.\d+)? (s|ms|min|h)\b(?! ago)"), "TIME"),
    (re.compile(r"\bjust now\b|\b\d+ (s|min|h|days?) ago\b"), "AGO"),
    (re.compile(r"\b\d+(\.\d+)? [kMG]?B\b"), "SIZE"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT[\d:]+Z\b"), "DATE"),
    (re.compile(r"\b\d{8}-\d{6}-"), "DATE-"),
    (re.compile(r"\+g[0-9a-f]{7,}\b"), "+gHASH"),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{12,64}\b"), "HASH"),
    (re.compile(r"\b\d+ of \d+ steps cached"), "N steps cached"),
    (re.compile(r"\bsize: \d+, content: [\w-]{43}"), "size: N, content: HASH"),  # in images.lock
    (re.compile(r"\b(linux/)(amd64|arm64)\b"), "PLATFORM"),
]


def normal(output: str) -> str:
    """Returns ``output`` without anything that differs between runs."""
    output = _PROGRESS.sub("", _OFFLINE.sub("", output + "\n")).rstrip()
    for varying, word in _VARYING:
        output = varying.sub(word, output)
    return output


def steps(output: str) -> tuple[frozenset[str], frozenset[tuple[str, str]]]:
    """The steps of builds in ``output`` that every run shows; and the stages of all steps there, each with how many
    steps it has."""
    matches = list(_STEP.finditer(output))
    return (
        frozenset(match[1].strip() for match in matches if not _INSTANT.match(match[1])),
        frozenset((match["stage"] or "", match["of"]) for match in matches),
    )


def differing_steps(page: str, output: str) -> frozenset[object]:
    """The steps of ``page`` that are not those of ``output``, or the other way round; and the stages of ``page`` that
    ``output`` does not have."""
    (in_page, stages), (in_output, existing) = steps(page), steps(output)
    return frozenset((in_page ^ in_output) | (stages - existing))


def filled(page: str, outputs: list[str]) -> str:
    """Returns ``page`` with the output of each example replaced, in order."""
    for example, output in reversed(list(zip(examples(page), outputs, strict=True))):
        page = page[: example.start] + (f"{output}\n" if output else "") + page[example.end :]
    return page


def check(file: Path, run: Callable[[str], str], *, write: bool) -> None:
    """Runs every example of the page in ``file`` by ``run``. Raises AssertionError for the first whose output differs
    from the page; with ``write`` the page gets the new output instead."""
    page = file.read_text(encoding="utf-8")
    page_examples = examples(page)
    outputs = [_OFFLINE.sub("", run(example.command)) for example in page_examples]
    if write:
        file.write_text(filled(page, outputs), encoding="utf-8")
        return
    for example, output in zip(page_examples, outputs, strict=True):
        if normal(output) != normal(example.output) or differing_steps(example.output, output):
            raise AssertionError(f"$ {example.command}\n{output}\n--- {file.name} says\n{example.output}")

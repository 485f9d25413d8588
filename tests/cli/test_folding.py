"""Output fits a terminal of 80 columns: folded between words, and never within a command or a name."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from builder.base import errors
from builder.base.errors import BuilderError
from builder.cli import output
from builder.cli.main import TABLE
from docs import terminal
from tests import projects

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


MODEL = "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8"
PROGRAM = projects.REPOSITORY_ROOT / "builder"
_COMMAND = re.compile(r"`[^`]*`")
_BARE = re.compile(
    rf"\bbuilder (?:{'|'.join(TABLE)})\b|\bgit (?:checkout|add|log)\b|\bdocker (?:login|pull|rm|tag)\b|\bsudo "
)


def flat(lines: list[str]) -> list[str]:
    """The words, without what stands around a command."""
    return [word for word in (word.strip("`.,;:") for word in " ".join(lines).split()) if word]


def may_be_wider(line: str, said: str) -> bool:
    """A single word, or a command."""
    alone = line.strip()
    commands = {command.strip("` ") for command in _COMMAND.findall(said)}
    return alone in commands or " " not in _COMMAND.sub("x", alone)


@pytest.mark.slow
@given(
    st.lists(st.text("abc/-`", min_size=1, max_size=90), min_size=1).map(" ".join),
    st.integers(20, 90),
    st.integers(0, 4),
)
@example("` ` ` //// ///////////////`", 20, 0)
def test_no_word_is_lost_or_cut_and_no_line_is_too_long(line: str, columns: int, hanging: int) -> None:
    lines = output.fold(line, columns, hanging)
    assert flat(lines) == flat([line])
    assert all(len(part) <= columns or may_be_wider(part, line) for part in lines)
    assert all(len(piece) <= len(line) for piece in lines)


def test_a_line_that_fits_stays_as_it_is() -> None:
    assert output.fold("  a   b  ", 80) == ["  a   b  "]
    assert output.fold("", 80) == [""]


def test_what_follows_stands_deeper_and_a_long_command_alone() -> None:
    line = f"  {MODEL} stays; to move it: `builder rollback {MODEL} --to 2`, and then look at the list"
    assert output.fold(line, 80) == [
        f"  {MODEL} stays; to move it:",
        f"    builder rollback {MODEL} --to 2",
        "    and then look at the list",
    ]


def test_a_short_command_stands_among_words() -> None:
    said = "is the registry of builder.yaml running, and are you really logged in there (`docker login`)?"
    assert output.fold(said, 80) == [
        "is the registry of builder.yaml running, and are you really logged in there",
        "  (`docker login`)?",
    ]


def test_colours_take_no_columns() -> None:
    said = "\x1b[31m\x1b[1merror:\x1b[0m " + "x" * 70
    assert output.fold(said, 80) == [said]


def test_a_word_that_no_column_holds_stands_below_its_row() -> None:
    rows = [("vllm-node-tf5:1", "just now", "current, untested", MODEL), ("vllm-node-tf5:2", "just now", "good", "-")]
    assert output.lines(("IMAGE", "BUILT", "STATE", "MODELS"), rows, 80) == [
        "IMAGE            BUILT     STATE              MODELS",
        "vllm-node-tf5:1  just now  current, untested",
        f"  {MODEL}",
        "vllm-node-tf5:2  just now  good               -",
    ]


def test_a_long_first_column_leaves_room_for_the_others() -> None:
    rows = [(MODEL, "vllm-node-tf5:12", "untested", "tool calls come back as text"), ("Org/M", "small:1", "good", "-")]
    assert output.lines(("MODEL", "IMAGE", "STATUS", "NOTE"), rows, 60) == [
        "MODEL           IMAGE             STATUS    NOTE",
        MODEL,
        "                vllm-node-tf5:12  untested  tool calls come",
        "                                            back as text",
        "Org/M           small:1           good      -",
    ]


def test_a_last_column_without_room_stands_below_every_row() -> None:
    rows = [("vllm-node-tf5:2", "0.19.2.dev5+gc214320", "-"), ("vllm-node-tf5:1", "0.19.1", "Org/M, Org/N, Org/O")]
    assert output.lines(("IMAGE", "VLLM", "MODELS"), rows, 50) == [
        "IMAGE            VLLM",
        "vllm-node-tf5:2  0.19.2.dev5+gc214320",
        "vllm-node-tf5:1  0.19.1",
        "  Org/M, Org/N, Org/O",
    ]


def kinds(of: type[BuilderError] = BuilderError) -> Iterator[type[BuilderError]]:
    for kind in of.__subclasses__():
        yield kind
        yield from kinds(kind)


SHOWN = """
import sys
from builder.base import errors
from builder.cli import main

path = "recipes/qwen3-coder-480b-a35b-instruct-fp8-on-two-nodes.yaml"
said = "MODEL is paired with an image that is not here\\n" + path + ":11:2: and this line is as long as a line may be"
hint = "`builder rollback MODEL --to 12` goes back to it, and `builder list` shows all that there are"
kind = getattr(errors, sys.argv[1])
more = {"address": "https://example.org#1"} if sys.argv[1] == "TreeGoneError" else {"hint": hint}
if sys.argv[1] == "BaseGoneError":
    more |= {"reference": "debian@sha256:1"}
if sys.argv[1] in {"BuildFailedError", "TreeGoneError", "ServeFailedError"}:
    more["log"] = ".builder/logs/20261121-062647-vllm-node-coder-nightly.log"
if kind is errors.FileProblemsError:
    wrong = errors.Problem(errors.Location(path, 11, 2), "the key `descriptoin` is unknown; is `description` meant?")
    error = kind((wrong, errors.Problem(errors.Location("mods/x/mod.yaml"), said.partition("\\n")[0])), hint=hint)
else:
    error = kind(said, **more)

def fail(**_): raise error
main.cli.main = fail
sys.exit(main.run_program([]))
""".replace("MODEL", MODEL)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind.__name__ for kind in kinds() if kind.__module__ == errors.__name__])
def test_every_error_fits_a_terminal(kind: str, tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text(SHOWN, encoding="utf-8")
    environ = {**os.environ, "PYTHONPATH": str(projects.REPOSITORY_ROOT)}
    screen = terminal.run(f"{sys.executable} shown.py {kind}", tmp_path, environ)
    piped = subprocess.run(
        [sys.executable, "shown.py", kind], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    lines = [line.rstrip() for line in screen.display if line.strip()]
    assert not screen.wrapped, "\n".join(lines)
    assert lines[0].startswith("error: ")
    assert flat(lines) == flat(piped.stderr.splitlines())
    # A program, or a log, gets each as one line.
    assert len(piped.stderr.splitlines()) == 2 + ("what to do:" in piped.stderr) + ("whole log:" in piped.stderr)
    if "what to do:" in piped.stderr:
        assert any(f"builder rollback {MODEL} --to 12" in line for line in lines)


def said(node: ast.expr | None) -> str:
    """A text of the program, with a long name for each value in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(said(part) if isinstance(part, ast.Constant) else MODEL for part in node.values)
    if isinstance(node, ast.IfExp):
        return said(node.body) or said(node.orelse)
    return ""


def hints() -> Iterator[str]:
    """Every hint that is written where its error is raised."""
    for file in sorted(PROGRAM.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield from filter(None, (said(key.value) for key in node.keywords if key.arg == "hint"))


@pytest.mark.parametrize("hint", sorted(set(hints())))
def test_every_hint_folds_between_words_and_keeps_its_commands_whole(hint: str) -> None:
    lines = output.fold(f"what to do: {hint}", 80)
    assert all(len(line) <= 80 or may_be_wider(line, hint) for line in lines)
    for command in _COMMAND.findall(hint):
        assert any(command.strip("`") in line for line in lines)
    # What is not in backquotes is taken for words.
    assert not _BARE.search(_COMMAND.sub("", hint))


def test_a_text_that_a_narrow_column_would_tear_into_shreds_stands_below() -> None:
    note = "note: does not start on the second node at all, and says nothing of why that is so"
    rows = [("vllm-node-tf5:1", "just now", "5.3 GB", "untested", "Org/M, Org/N"), ("", "", "", "", note)]
    assert output.lines(("IMAGE", "BUILT", "SIZE", "STATE", "MODELS"), rows, 62)[1:] == [
        "vllm-node-tf5:1  just now  5.3 GB  untested  Org/M, Org/N",
        "  note: does not start on the second node at all, and says",
        "  nothing of why that is so",
    ]


def test_a_long_first_cell_alone_is_one_line() -> None:
    rows = [(MODEL, "", ""), ("Org/M", "vllm-node-tf5:12", "good")]
    shown = output.lines(("MODEL", "IMAGE", "NOTE"), rows, 40)
    assert (shown[1], shown[2].split(), len(shown)) == (MODEL, ["Org/M", "vllm-node-tf5:12", "good"], 3)


def test_a_table_without_headings_has_an_empty_line_in_their_place() -> None:
    assert output.lines(("", ""), [("image", "small:1"), ("recipe", "chat")], 80) == [
        "",
        "image   small:1",
        "recipe  chat",
    ]
    assert output.lines(("", ""), [("image", "x" * 90)], 80) == ["", "image", "  " + "x" * 90]

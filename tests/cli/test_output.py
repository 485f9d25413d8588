"""Colours beside the words and signs for what changed: no width changes, and no text."""

from __future__ import annotations

import json

import click
import pytest

from builder.cli import diff_cli, output
from builder.cli.output import log_with_colours, log_without_colours, of_json, styled, visible
from builder.lab.changes import FileChange, PackageChange


def plain(text: str) -> str:
    return click.unstyle(output.visible(text))


@pytest.mark.parametrize(("word", "colour"), [("added", "green"), ("gone", "red"), ("changed", "yellow")])
def test_a_word_has_its_colour(word: str, colour: str) -> None:
    shown = output.word(word)
    assert output.visible(shown) == click.style(word, fg=colour)
    assert output.columns_of(shown) == len(word)


def test_other_words_and_lines_have_none() -> None:
    assert output.word("other files") == "other files"
    assert output.line(" as before") == " as before"


def test_the_lines_of_a_file_are_as_they_were_but_for_their_colour() -> None:
    lines = ("@@ -1 +1 @@", "-one", "+two")
    shown = list(diff_cli.of_files([FileChange("chat.jinja", "changed", lines, "")], full=True))
    assert [plain(line) for line in shown] == ["chat.jinja: changed", *(f"  {line}" for line in lines)]
    assert output.visible(shown[-1]) == f"  {click.style('+two', fg='green')}"


def test_packages_stay_in_their_columns() -> None:
    changes = [PackageChange("torch", "up", "2.10", "2.11"), PackageChange("triton", "in", None, "3.0")]
    shown = [plain(line) for line in diff_cli.packages("Python packages", changes, full=True)]
    assert shown[2:] == ["  up   torch   2.10 → 2.11", "  new  triton  3.0"]


def test_where_a_pointer_went_is_told_in_words() -> None:
    assert plain(output.moved("small:1", "small:2")) == "small:1 → small:2"


def test_a_table_fits_its_columns_and_folds_the_last() -> None:
    rows = [("vllm-node-tf5:7", "good", "Org/Model-One, Org/Model-Two"), ("x:1", "bad", "-")]
    assert output.lines(("IMAGE", "STATUS", "MODELS"), rows, 42) == [
        "IMAGE            STATUS  MODELS",
        "vllm-node-tf5:7  good    Org/Model-One,",
        "                         Org/Model-Two",
        "x:1              bad     -",
    ]


# Text of others on its way to the terminal.

TITLE = "\x1b]0;owned\x07"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, ü and 漢", "plain text, ü and 漢"),
        (f"a{TITLE}b", "a\\x1b]0;owned\\x07b"),
        ("\x1b[41mred\x1b[5m", "\\x1b[41mred\\x1b[5m"),
        ("one\ntwo\tthree", "one\ntwo\tthree"),
        ("good\rbad", "good\\rbad"),
        ("\x9b31m", "\\x9b31m"),  # C1: one byte for ESC [
        ("\x7f\x08", "\\x7f\\x08"),
        ("gpj\u202eexe.sh", "gpj\\u202eexe.sh"),
        ("\u2066a\u2069\u200b\ufeff", "\\u2066a\\u2069\\u200b\\ufeff"),
        ("\U000e0041", "\\U000e0041"),
        ("a\u2028b\x85c", "a\\u2028b\\x85c"),
        ("\udce9 of a file name", "\\udce9 of a file name"),
        ("non\u00a0breaking", "non\u00a0breaking"),
    ],
)
def test_control_characters_are_shown(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible(shown) == shown


def test_only_the_colours_and_bold_letters_of_this_program_pass() -> None:
    assert visible(styled("built", fg="green") + " x") == "\x1b[32mbuilt\x1b[0m x"
    assert visible(styled(f"a{TITLE}", bold=True)) == "\x1b[1ma\\x1b]0;owned\\x07\x1b[0m"
    for others in ("\x1b[8m", "\x1b[41m", "\x1b[;31m", "\x1b[0;31m", "\x1b[38;5;0m"):
        assert "\x1b" not in visible(f"{others}text")


@pytest.mark.parametrize(
    ("text", "in_colours", "plain"),
    [
        ("\x1b[1;32mINFO\x1b[0m ready", "\x1b[1;32mINFO\x1b[0m ready\x1b[0m", "INFO ready"),
        ("\x1b[38;5;8mgrey", "\x1b[38;5;8mgrey\x1b[0m", "grey"),
        ("\x1b[8mhidden", "\\x1b[8mhidden", "\\x1b[8mhidden"),
        ("\x1b[2J\x1b[Hcleared", "\\x1b[2J\\x1b[Hcleared", "\\x1b[2J\\x1b[Hcleared"),
        (TITLE, "\\x1b]0;owned\\x07", "\\x1b]0;owned\\x07"),
        (" 10%\r 50%\r100%", "100%", " 10%\\r 50%\\r100%"),
        ("of Windows\r", "of Windows", "of Windows"),
        ("\x1b[31", "\\x1b[31", "\\x1b[31"),
    ],
)
def test_a_streamed_log_keeps_its_colours_on_a_terminal_and_nothing_else(
    text: str, in_colours: str, plain: str
) -> None:
    assert log_with_colours(text) == in_colours
    assert log_without_colours(text) == plain


def test_json_holds_the_same_and_shows_no_control_character() -> None:
    content = {"note": f"{TITLE}\x9b\x7f\u202e\u200b\U000e0041\udce9 ü 漢 😀"}
    text = of_json(json.dumps(content, indent=1, ensure_ascii=False))
    assert json.loads(text) == content
    assert visible(text) == text
    assert "ü 漢 😀" in text


def test_a_long_text_costs_little() -> None:
    assert output.visible("x\n" * 100_000) == "x\n" * 100_000

"""What a newcomer reads first leads to this program, and to no other one of its name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from builder.cli.main import TABLE
from tests.projects import REPOSITORY_ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGES = sorted({REPOSITORY_ROOT / "README.md", *(REPOSITORY_ROOT / "docs").rglob("*.md")})
COMMAND = re.compile(r"(?:^|`|\$ |&& )builder ([a-z][a-z-]*)(?=[ `\n])", re.MULTILINE)
# PyPI has another program of that name: https://pypi.org/project/builder/
BY_NAME = re.compile(r"\b(?:uvx|pipx run|(?:pip|pipx|uv tool|uv pip) (?:install|run)(?: --?[\w-]+)*) builder\b")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY_ROOT)))
def test_no_page_installs_the_other_program(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not BY_NAME.search(" ".join(text.split()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY_ROOT)))
def test_every_command_that_a_page_shows_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    shown = re.findall(r"^ *```(?:sh|console|text)?\n.*?^ *```$|`[^`\n]+`", text, flags=re.MULTILINE | re.DOTALL)
    named = {name for part in shown for name in COMMAND.findall(part)}
    assert named - set(TABLE) == set()


def test_the_way_without_a_clone_comes_first() -> None:
    text = (REPOSITORY_ROOT / "README.md").read_text(encoding="utf-8")
    commands = ("uv tool install ./", "builder init", "builder up", "make quickstart")
    places = [text.index(command) for command in commands]
    assert places == sorted(places)
    assert places[-2] < text.index("## The three things you do most")


def test_the_readme_fits_on_a_page_and_says_first_what_nobody_has_run() -> None:
    text = (REPOSITORY_ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 700
    assert text.index("Nobody has run any of the GPU images on a GB10 yet") < text.index("builder up qwen3.5-122b-node")

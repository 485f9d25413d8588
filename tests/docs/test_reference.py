"""The reference says what the program does now."""

from __future__ import annotations

import pytest

from builder.cli.main import TABLE
from docs.reference import generate

PAGES = generate.pages()


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_current(page: str) -> None:
    committed = (generate.HERE / page).read_text(encoding="utf-8")
    assert committed == PAGES[page], "`make reference` writes it anew"


def test_no_other_page_lies_there() -> None:
    assert {path.name for path in generate.HERE.glob("*.md")} == set(PAGES)


def test_every_command_is_told() -> None:
    headings = PAGES["commands.md"].splitlines()
    assert [name for name in TABLE if f"## builder {name}" not in headings] == []

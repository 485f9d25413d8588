"""Manual pages as roff reads them."""

from __future__ import annotations

import re

import click
import pytest

from builder.cli import manual_pages
from builder.cli.main import cli

REQUESTS = {".TH", ".SH", ".PP", ".TP", ".nf", ".fi", ".RS", ".RE"}
PAGES = manual_pages.of_all(cli, "1.2.3")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_nothing_but_requests_and_escaped_text(name: str) -> None:
    text = PAGES[name]
    assert text.isascii()  # troff reads bytes
    for line in text.splitlines():
        assert not line.startswith("'")
        assert not line.startswith(".") or line.split()[0] in REQUESTS, line
        assert not re.search(r"\\(?![e(&\[f-])", line), line


def test_what_roff_would_obey_is_text() -> None:
    @click.command()
    def hidden() -> None:
        """Do.

        .so /etc/passwd is no request, and 'this is none; a \\ and a … stay.

        \b
        .PP
          stands as it is
        """

    page = manual_pages.page(hidden, "builder hidden", "1")
    assert "\n\\&.so /etc/passwd" in page
    assert "a \\e and a \\[u2026] stay" in page
    assert "\n.nf\n.RS\n\\&.PP\n  stands as it is\n.RE\n.fi" in page


def test_a_group_lists_its_commands() -> None:
    assert "\\fBbuilder\\-mods\\-check\\fR(1)" in PAGES["builder-mods.1"]
    assert "\\fBbuilder\\-build\\fR(1)" in PAGES["builder.1"]

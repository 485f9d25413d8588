"""Manual pages as roff reads them."""

from __future__ import annotations

import re
import subprocess
import sys

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


def test_they_are_made_with_click_alone() -> None:
    """As where a wheel is built: what the program needs to run is not installed there."""
    code = (
        "import importlib.metadata, re, sys\n"
        "needed = importlib.metadata.requires('builder') or ()\n"
        "names = {re.split(r'[^A-Za-z0-9_.-]', each)[0] for each in needed} - {'click'}\n"
        "installed = importlib.metadata.packages_distributions().items()\n"
        "tops = {name for name, owners in installed if names & {owner.lower() for owner in owners}}\n"
        "assert {'docker', 'yaml', 'rich'} <= tops\n"
        "class Refusing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in tops: raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refusing())\n"
        "from builder.cli import completion, manual_pages\n"
        "from builder.cli.main import cli\n"
        "assert len(manual_pages.of_all(cli, '1')) > 40\n"
        "assert completion.source(cli, 'fish')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

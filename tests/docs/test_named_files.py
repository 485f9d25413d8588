"""The files that the pages for those who change the program name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.projects import REPOSITORY_ROOT

DOCS = REPOSITORY_ROOT / "docs"
PAGES = [DOCS / name for name in ("architecture.md", "invariants.md", "newcomer.md", "security.md", "pins.md")]
PAGES += sorted((DOCS / "decisions").glob("*.md"))
PACKAGES = "|".join(path.name for path in (REPOSITORY_ROOT / "builder").iterdir() if path.is_dir())
NAMED = re.compile(rf"`((?:tests|builder|{PACKAGES})/[\w/]+\.py)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = {name if name.startswith(("tests/", "builder/")) else f"builder/{name}" for name in NAMED.findall(text)}
    assert sorted(name for name in named if not (REPOSITORY_ROOT / name).is_file()) == []


def test_every_decision_is_listed() -> None:
    listed = (DOCS / "decisions/README.md").read_text(encoding="utf-8")
    records = [page.name for page in (DOCS / "decisions").glob("[0-9]*.md")]
    assert len(records) > 30
    assert [name for name in records if name not in listed] == []

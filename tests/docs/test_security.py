"""docs/security.md names a test for each entrance."""

from __future__ import annotations

import re

from tests.projects import REPOSITORY_ROOT

PAGE = REPOSITORY_ROOT / "docs/security.md"
NAMED = re.compile(r"`((?:tests|builder)/[\w/]+\.py)`")


def test_every_entrance_has_its_tests_and_they_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = NAMED.findall(text)
    assert [path for path in named if not (REPOSITORY_ROOT / path).is_file()] == []
    table = text.partition("## What is read and not obeyed")[2].partition("## What is shown")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| entrance")]
    assert len(rows) > 15
    assert [row for row in rows if "tests/" not in row] == []

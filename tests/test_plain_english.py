"""Pages for people and the program's own texts contain no words that reveal translated English.

CONTRIBUTING.md has the rules, and pairs of what not to write and what to write.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from tests.projects import REPOSITORY_ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GIVEAWAYS = re.compile(
    r"\b(?:anew|held against|(?:is|are|was|were|be|been) told|told (?:as|of|apart)|makes? it that|of before|of then"
    r"|(?:is|are|was|were) (?-i:none)|tells? of|does without|it from nothing)\b",
    re.IGNORECASE,
)
# The first column of the pairs: what not to write.
PAIR = re.compile(r"^\| [^|]* \| (?=[^|]* \|$)", re.MULTILINE)
PAGES = [REPOSITORY_ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((*(REPOSITORY_ROOT / "docs").rglob("*.md"), *(REPOSITORY_ROOT / "mods").rglob("*.md")))


def giveaways(text: str) -> list[str]:
    return GIVEAWAYS.findall(" ".join(text.split()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY_ROOT)))
def test_a_page_is_plain_english(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if page.name == "CONTRIBUTING.md":
        text = PAIR.sub("", text)
    assert giveaways(text) == []


def texts(tree: ast.Module) -> Iterator[ast.Constant]:
    """The texts that a module can print, without docstrings and other texts that serve as comments."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node


@pytest.mark.slow
def test_the_texts_of_the_program_are_plain_english() -> None:
    wrong = [
        f"{path.relative_to(REPOSITORY_ROOT)}:{node.lineno}: {giveaways(str(node.value))}"
        for path in sorted((REPOSITORY_ROOT / "builder").rglob("*.py"))
        for node in texts(ast.parse(path.read_text(encoding="utf-8")))
        if giveaways(str(node.value))
    ]
    assert wrong == []


def test_what_not_to_write_is_found() -> None:
    pairs = (REPOSITORY_ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Plain English\n")[2]
    wrong = [found[0] for found in PAIR.finditer(pairs.partition("\n## ")[0])]
    assert len(wrong) >= 10
    assert sum(bool(giveaways(each)) for each in wrong) >= 6
    assert giveaways("The list\nis   told Anew; no word of before.") == ["is told", "Anew", "of before"]

"""The pages and their links, as a repository page shows them and as `make docs` copies them for the site."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING

import pytest

from docs import site
from tests.projects import REPOSITORY_ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOCS = REPOSITORY_ROOT / "docs"
PAGES = [REPOSITORY_ROOT / name for name in site.PAGES] + sorted(DOCS.rglob("*.md"))
LINK = re.compile(r"(?:\]\(|src(?:set)?=\")(?!https?:|data:)([^)\s#\"]*)(?:#([^)\s\"]+))?[)\"]")
THEMES = {"only-light", "only-dark"}
CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def broken_links(page: Path) -> list[str]:
    links = LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    return [f"{path}#{anchor}" for path, anchor in links if not leads_somewhere(page, path, anchor)]


def leads_somewhere(page: Path, path: str, anchor: str) -> bool:
    target = page.parent / path if path else page
    is_image = target.suffix == ".svg" and anchor in THEMES
    return target.is_file() and (not anchor or is_image or anchor in anchors(target.read_text(encoding="utf-8")))


def anchors(text: str) -> set[str]:
    """The anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def entries(navigation: list[dict[str, object]]) -> Iterator[str]:
    for entry in navigation:
        for value in entry.values():
            if isinstance(value, list):
                yield from entries(value)
            else:
                yield str(value)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY_ROOT)))
def test_every_link_leads_to_a_page_and_a_heading(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A, b: `c`\n[1](page.md#a-b-c) [2](page.md#a) [3](none.md) `[4](none.md)` [5](#a-b-c)\n")
    assert broken_links(page) == ["page.md#a", "none.md#"]


def test_the_site_has_every_page_and_its_links_hold(tmp_path: Path) -> None:
    site.write_pages(tmp_path / "pages")
    pages = {str(page.relative_to(tmp_path / "pages")): page for page in (tmp_path / "pages").rglob("*.md")}
    assert {name: broken for name, page in pages.items() if (broken := broken_links(page))} == {}
    settings = tomllib.loads((REPOSITORY_ROOT / "zensical.toml").read_text(encoding="utf-8"))
    listed = list(entries(settings["project"]["nav"]))
    assert sorted(listed) == sorted(name for name in pages if not re.match(r"decisions/\d", name))


@pytest.mark.parametrize(("page", "picture"), [("index", "rollback"), ("tutorial", "build")])
def test_a_picture_of_the_site_follows_the_choice_of_the_reader(tmp_path: Path, page: str, picture: str) -> None:
    site.write_pages(tmp_path / "pages")
    text = (tmp_path / f"pages/{page}.md").read_text(encoding="utf-8")
    images = re.findall(r'<img src="images/([^"]*)" alt="[^"]+">', text)
    assert images == [f"{picture}-light.svg#only-light", f"{picture}-dark.svg#only-dark"]
    assert "<picture>" not in text

"""Copies the pages of the site into one folder (``make docs``): docs/, with the README as its first page."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
# A `picture` follows the system, but the reader chooses light or dark on the site: the theme shows one of two images.
PICTURE = re.compile(r'<picture>\s*<source [^>]*srcset="([^"]*)">\s*<img\s+src="([^"]*)"\s+(alt="[^"]*")>\s*</picture>')
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}


def write_pages(folder: Path) -> None:
    """Writes the pages into ``folder``, which is replaced. Links of the pages at the top lose their ``docs/``; links to
    these pages lose their ``../``."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        for start in ("](", 'srcset="', 'src="'):
            text = text.replace(f"{start}docs/", start)
        (folder / page).write_text(text, encoding="utf-8")
    for path in folder.glob("*.md"):
        text = path.read_text(encoding="utf-8")
        for source, page in PAGES.items():
            text = text.replace(f"](../{source})", f"]({page})")
        text = PICTURE.sub(r'<img src="\2#only-light" \3> <img src="\1#only-dark" \3>', text)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))

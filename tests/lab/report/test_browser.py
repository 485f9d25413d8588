"""The page in a real browser: nothing in it fails, nothing leaves it, and it is drawn at each width in both themes."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from builder.base.events import ignore
from builder.commands import listing
from builder.lab import report
from tests import projects
from tests.lab.report import stocked

# The browser is fetched once (96 MB), into the clone.
pytestmark = pytest.mark.slow
WIDTHS = (390, 820, 1280)
HEIGHT = 900


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    project = stocked.fill(stocked.make(folder / "project"))
    file = folder / "page.html"
    projects.write(file, report.render_page(report.collect_page(project, {}, ignore, listing.present_evidence)))
    return file


def browse(page: Path, *options: str) -> tuple[str, str]:
    """Opens a page; returns the document as the browser has it, and what the page told its console."""
    done = subprocess.run(
        [
            projects.REPOSITORY_ROOT / "scripts/browser",
            f"--user-data-dir={page.parent / 'profile'}",
            "--disable-breakpad",
            "--enable-logging=stderr",
            *options,
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def network(log: Path) -> str:
    """All that the browser's network did, as text."""
    return log.read_text(encoding="utf-8", errors="replace")


@pytest.mark.long
def test_no_error_and_no_request(page: Path) -> None:
    log = page.parent / "net.json"
    document, console = browse(page, "--dump-dom", f"--log-net-log={log}")
    assert console == ""
    assert "http" not in "".join(line for line in network(log).splitlines() if '"url"' in line or '"host"' in line)
    assert document.count("<meter") == 12  # four figures of three numbers; the other model was never measured


@pytest.mark.long
def test_what_the_page_must_not_do_would_show(page: Path, tmp_path: Path) -> None:
    """The same page with a picture of elsewhere and a script: the policy refuses both, and the console says so; without
    the policy the network is asked, and the log says that."""
    text = page.read_text(encoding="utf-8")
    planted = '<body><img src="http://127.0.0.1:9/planted.png"><script>throw new Error("planted")</script>'
    projects.write(tmp_path / "planted.html", text.replace("<body>", planted))
    log = tmp_path / "net.json"
    _, console = browse(tmp_path / "planted.html", "--dump-dom", f"--log-net-log={log}")
    assert console.count("Content Security Policy") == 2
    assert "planted.png" not in network(log)
    projects.write(tmp_path / "open.html", f"<!doctype html>{planted}")
    _, console = browse(tmp_path / "open.html", "--dump-dom", f"--log-net-log={log}")
    assert "planted" in console
    assert "planted.png" in network(log)


@pytest.mark.long
def test_it_is_drawn_at_every_width_in_both_themes(page: Path, tmp_path: Path) -> None:
    pictures = []
    for width in WIDTHS:
        for theme in (0, 1):  # dark, light
            picture = tmp_path / f"{width}-{theme}.png"
            browse(
                page,
                f"--screenshot={picture}",
                f"--window-size={width},{HEIGHT}",
                f"--blink-settings=preferredColorScheme={theme}",
            )
            content = picture.read_bytes()
            assert struct.unpack(">II", content[16:24]) == (width, HEIGHT)
            pictures.append(content)
    assert len(set(pictures)) == len(pictures)

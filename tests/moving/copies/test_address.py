from __future__ import annotations

from pathlib import Path

import pytest

from builder.base.errors import UsageError
from builder.moving.copies import CopyAddress, parse_address


@pytest.mark.parametrize(
    ("text", "url", "path", "ref"),
    [
        ("https://example.org/o/r", "https://example.org/o/r", "", "HEAD"),
        ("https://example.org/o/r@v1", "https://example.org/o/r", "", "v1"),
        ("https://example.org/o/r.git//mods/a", "https://example.org/o/r.git", "mods/a", "HEAD"),
        ("https://example.org/o/r//mods/a/@feature/x", "https://example.org/o/r", "mods/a", "feature/x"),
        ("https://me:secret@example.org/o/r//mods/a@main", "https://me:secret@example.org/o/r", "mods/a", "main"),
        ("git@example.org:o/r.git//mods/a@v1", "git@example.org:o/r.git", "mods/a", "v1"),
        ("ssh://git@example.org:22/o/r//a", "ssh://git@example.org:22/o/r", "a", "HEAD"),
        ("git://127.0.0.1:9418/r.git//./a/", "git://127.0.0.1:9418/r.git", "a", "HEAD"),
        ("file:///srv/r.git//a@x", "file:///srv/r.git", "a", "x"),
        ("/srv/r.git//recipes/4x/chat.yaml", "/srv/r.git", "recipes/4x/chat.yaml", "HEAD"),
        ("https://github.com/o/r/tree/main/mods/a", "https://github.com/o/r", "mods/a", "main"),
        ("https://github.com/o/r/blob/v1/recipes/a%20b.yaml", "https://github.com/o/r", "recipes/a b.yaml", "v1"),
        ("https://gitlab.com/g/sub/r/-/tree/main/mods/a", "https://gitlab.com/g/sub/r", "mods/a", "main"),
    ],
)
def test_an_address_has_a_repository_a_path_and_a_ref(text: str, url: str, path: str, ref: str) -> None:
    assert parse_address(text) == CopyAddress(url, path, ref)


def test_a_folder_of_this_machine_counts_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "with@sign").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse_address("with@sign") == CopyAddress(str(tmp_path / "with@sign"), "", "HEAD")
    assert parse_address("clone//mods/a@main") == CopyAddress(str(tmp_path / "clone"), "mods/a", "main")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "//mods/a",
        "-uploadpack=x//a",
        "--upload-pack=x",
        "ext::sh -c touch% x",
        "fd::17//a",
        "https://example.org//a",
        "https://example.org/o/r//a/../../b",
        "https://github.com/o/r/tree/main/../x",
        "https://example.org/o/r//a@",
        "https://example.org/o/r@",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_address(text)

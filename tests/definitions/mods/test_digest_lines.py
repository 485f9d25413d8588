from __future__ import annotations

import pytest

from builder.base.errors import FileProblemsError
from builder.definitions import mod

SHA = "a" * 64
OLD = "b" * 64


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("files: [{from: https://x/y, to: .}]\n", f"files: [{{from: https://x/y, sha256: {SHA}, to: .}}]\n"),
        (
            "files:\n  - from: https://x/y  # why\n    to: .  # where\nenv: {A: ü}\n",
            f"files:\n  - from: https://x/y  # why\n    sha256: {SHA}\n    to: .  # where\nenv: {{A: ü}}\n",
        ),
        (
            "# ümlaut\nfiles:\n- to: .\n  from: 'https://x/y'",
            f"# ümlaut\nfiles:\n- to: .\n  from: 'https://x/y'\n  sha256: {SHA}\n",
        ),
        (
            f"files:\r\n  - from: https://x/y\r\n    sha256: {OLD}\r\n    to: .\r\n",
            f"files:\r\n  - from: https://x/y\r\n    sha256: {SHA}\r\n    to: .\r\n",
        ),
        (
            "files:\r\n- from: https://x/y\r\n  to: .\r\n",
            f"files:\r\n- from: https://x/y\r\n  sha256: {SHA}\r\n  to: .\r\n",
        ),
        (
            f"files: [{{to: ., sha256: '{OLD}', from: https://x/y}}]\n",
            f"files: [{{to: ., sha256: {SHA}, from: https://x/y}}]\n",
        ),
    ],
)
def test_the_rest_of_the_text_stays(before: str, after: str) -> None:
    assert mod.with_digest(before, "mod.yaml", 0, SHA) == after


def test_only_the_entry_that_is_meant_is_changed() -> None:
    text = "files:\n  - {from: a, to: .}\n  - {from: https://x/y, to: .}\n"
    assert mod.with_digest(text, "mod.yaml", 1, SHA).splitlines()[1:] == [
        "  - {from: a, to: .}",
        f"  - {{from: https://x/y, sha256: {SHA}, to: .}}",
    ]


def test_a_digest_of_digits_alone_stays_text() -> None:
    digits = "1" * 64
    with pytest.raises(FileProblemsError):
        mod.with_digest("files: [{from: https://x/y, to: .}]\n", "mod.yaml", 0, "not\nyaml: [")
    changed = mod.with_digest("files: [{from: https://x/y, to: .}]\n", "mod.yaml", 0, digits)
    assert f'sha256: "{digits}"' in changed


def test_what_cannot_be_added_to_is_said_with_its_place() -> None:
    text = "x: &entry {from: https://x/y}\nfiles: [{<<: *entry, to: .}]\n"
    with pytest.raises(FileProblemsError, match=f"add it by hand: sha256: {SHA}"):
        mod.with_digest(text, "mod.yaml", 0, SHA)


def test_a_file_that_only_one_of_the_two_loaders_takes_is_an_error_of_the_user() -> None:
    """libyaml passes over a byte order mark at the end, PyYAML's own scanner does not."""
    with pytest.raises(FileProblemsError, match=f"add it by hand: sha256: {SHA}"):
        mod.with_digest("files: [{from: https://x/y, to: .}]\n\ufeff", "mod.yaml", 0, SHA)

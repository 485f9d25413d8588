"""The report of a bug, which users paste into an issue."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from builder.cli import main


def test_the_values_of_variables_and_of_api_keys_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = ["--env", "A=hidden1", "-e", "B=hidden2", "--env=C=hidden3", "-eD=hidden4", "--env", "E", "-d"]
    monkeypatch.setattr(sys, "argv", ["builder", "run", "chat", *secret, "--", "--api-key", "hidden5", "--x=y"])
    main.report(ValueError, ValueError("a bug"), None)
    path = Path(capsys.readouterr().err.rpartition("the file ")[2].strip())
    try:
        text = path.read_text(encoding="utf-8")
    finally:
        path.unlink()
        path.parent.rmdir()
    assert "hidden" not in text
    shown = ["run", "chat", "--env", "A=…", "-e", "B=…", "--env=C=…", "-eD=…", "--env", "E", "-d", "--"]
    assert f"arguments: {[*shown, '--api-key', '…', '--x=y']}" in text

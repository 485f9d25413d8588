"""The limit of the logs of containers, which the daemon's file alone tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.engine import versions
from builder.engine.client import Endpoint

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("settings", "endless"),
    [
        ("{}", True),
        ('{"log-opts": "x"}', True),
        ('{"log-opts": {"max-size": "50m"}}', False),
        ("{", False),
        ("[]", False),
        (None, True),
    ],
)
def test_the_daemon_s_file(tmp_path: Path, settings: str | None, endless: bool) -> None:
    file = tmp_path / "daemon.json"
    if settings is not None:
        file.write_text(settings, encoding="utf-8")
    here, away = Endpoint("unix:///nowhere", (), "a test"), Endpoint("tcp://elsewhere", (), "a test")
    assert versions.has_endless_logs(here, file) is endless
    assert settings is None or not versions.has_endless_logs(away, file)

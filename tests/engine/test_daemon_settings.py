from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from builder.engine import machine
from builder.engine.client import Endpoint
from builder.engine.machine import DaemonSettings

if TYPE_CHECKING:
    from pathlib import Path


INFO = {"MemoryLimit": True, "SwapLimit": True, "LoggingDriver": "json-file"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, DaemonSettings(limits_memory=True, endless_logs=True, build_cache=None)),
        (None, DaemonSettings(limits_memory=True, endless_logs=False, build_cache=None)),
        ({"log-opts": {"max-size": "50m"}}, DaemonSettings(True, False, None)),
        ({"builder": {"gc": {"defaultKeepStorage": "20GB"}}}, DaemonSettings(True, True, 20 * 1000**3)),
        (
            {"builder": {"gc": {"defaultReservedSpace": "10GiB", "defaultMaxUsedSpace": "100g"}}},
            DaemonSettings(True, True, 100 * 1000**3),
        ),
        ({"builder": {"gc": {"enabled": False, "defaultKeepStorage": "20GB"}}}, DaemonSettings(True, True, None)),
        ({"builder": {"gc": {"defaultKeepStorage": "10%"}}}, DaemonSettings(True, True, None)),
        ({"builder": [], "log-opts": "x"}, DaemonSettings(True, True, None)),
    ],
)
def test_the_daemon_s_file(settings: dict[str, Any] | None, expected: DaemonSettings) -> None:
    assert machine.parse(INFO, settings) == expected


def test_what_the_engine_tells() -> None:
    assert not machine.parse({**INFO, "SwapLimit": False}, {}).limits_memory
    assert not machine.parse({**INFO, "LoggingDriver": "local"}, {}).endless_logs


@pytest.mark.engine
def test_a_real_engine_and_a_file_that_cannot_be_read(endpoint: Endpoint, tmp_path: Path) -> None:
    (tmp_path / "daemon.json").write_text("{", encoding="utf-8")
    assert not machine.read_daemon_settings(endpoint, tmp_path / "daemon.json").endless_logs
    (tmp_path / "daemon.json").write_text(json.dumps({"log-opts": {"max-size": "1m"}}), encoding="utf-8")
    assert not machine.read_daemon_settings(endpoint, tmp_path / "daemon.json").endless_logs

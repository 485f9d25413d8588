"""Leftovers of a test session: processes, images and containers. A session must not leave any."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.engine import client
from builder.engine.client import Endpoint
from tests import shared

if TYPE_CHECKING:
    from collections.abc import Iterator


_GRACE = 60.0  # seconds for a stopped process to end


def processes() -> list[str]:
    """The processes of this session's tests that still run, each with its test."""
    end = time.monotonic() + _GRACE
    while (running := list(_processes())) and time.monotonic() < end:
        time.sleep(0.1)
    return running


def _processes() -> Iterator[str]:
    session_variable = f"{shared.VARIABLE}={shared.folder()}".encode()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            environ = entry.read_bytes().split(b"\0")
            argv = (entry.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # the process ended, or belongs to another user
            continue
        tests = [value for value in environ if value.startswith(b"PYTEST_CURRENT_TEST=")]
        # pytest sets PYTEST_CURRENT_TEST only during a test: its own processes started without it.
        if argv and session_variable in environ and tests:
            yield f"process {entry.parent.name}, {argv[:200]}, of {tests[0].partition(b'=')[2].decode()}"


def in_engine(endpoint: Endpoint) -> list[str]:
    """The images, containers, volumes and networks with names of this session."""
    named = re.compile(rf"(?:builder-test|docs)-{shared.mark()}[0-9a-f]{{6}}")
    remains = []
    for kind, path, query in (
        ("image", "/images/json", {}),
        ("container", "/containers/json", {"all": 1}),
        ("volume", "/volumes", {}),
        ("network", "/networks", {}),
    ):
        answer = json.loads(client.raw(endpoint, "GET", path, query=query))
        listed: list[dict[str, Any]] = (answer.get("Volumes") if kind == "volume" else answer) or []
        remains += [f"{kind} {match[0]}" for entry in listed if (match := named.search(json.dumps(entry)))]
    return remains

"""A pinned base that the registry does not give: the engine's own copy takes its place, and the pin says so."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace

import pytest

from builder.lock import reading, text
from builder.lock.pins import BasePin
from builder.project import Project
from tests import projects

pytestmark = pytest.mark.engine

Builder = Callable[..., subprocess.CompletedProcess[str]]


def test_a_build_takes_the_engine_s_own_copy(small: Project, builder: Builder) -> None:
    builder("lock", "small")
    lock = reading.read(small.lock)
    (platform,) = lock.pins["small"]
    pins = lock.pins_of("small", platform)
    assert pins.base
    gone = BasePin(pins.base.requested, f"sha256:{'0' * 64}")
    projects.write(small.lock, text.dump(lock.with_pins("small", platform, replace(pins, base=gone))))
    refused = builder("build", "chat", "--locked", code=6)
    assert "`builder lock --update base`" in refused.stderr
    built = builder("build", "chat")
    assert "building on this engine's own copy of the base" in built.stderr
    base = reading.read(small.lock).pins_of("small", platform).base
    assert base
    assert base.resolved.startswith("local:")

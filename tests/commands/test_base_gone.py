"""A pinned base that the registry does not give: the engine's own copy takes its place, and the pin says so."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace

import pytest

from builder.base.project import Project
from builder.lock import lock_file, text
from builder.lock.model import BasePin
from tests import projects

pytestmark = pytest.mark.engine

Builder = Callable[..., subprocess.CompletedProcess[str]]


def test_a_build_takes_the_engine_s_own_copy(small: Project, builder: Builder) -> None:
    builder("lock", "small")
    lock = lock_file.read_lock(small.lock)
    (platform,) = lock.pins["small"]
    pins = lock.pins_of("small", platform)
    assert pins.base
    gone = BasePin(pins.base.requested, f"sha256:{'0' * 64}")
    projects.write(small.lock, text.dump_lock(lock.with_pins("small", platform, replace(pins, base=gone))))
    refused = builder("build", "chat", "--locked", code=6)
    assert "`builder lock --update base`" in refused.stderr
    built = builder("build", "chat")
    assert "building on this engine's own copy of the base" in built.stderr
    base = lock_file.read_lock(small.lock).pins_of("small", platform).base
    assert base
    assert base.resolved.startswith("local:")

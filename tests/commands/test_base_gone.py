"""A pinned base that the registry does not give: the error names the command that pins the engine's own copy."""

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


def test_a_base_that_is_gone_is_pinned_again_from_the_engine(small: Project, builder: Builder) -> None:
    builder("lock", "small")
    lock = lock_file.read_lock(small.lock)
    (platform,) = lock.pins["small"]
    pins = lock.pins_of("small", platform)
    assert pins.base
    gone = BasePin(pins.base.requested, f"sha256:{'0' * 64}")
    projects.write(small.lock, text.dump_lock(lock.with_pins("small", platform, replace(pins, base=gone))))
    assert "`builder lock DEFINITION --update base`" in " ".join(builder("build", "chat", code=6).stderr.split())
    builder("lock", "small", "--update", "base")
    builder("build", "chat")
    base = lock_file.read_lock(small.lock).pins_of("small", platform).base
    assert base
    assert base.resolved.startswith("local:")

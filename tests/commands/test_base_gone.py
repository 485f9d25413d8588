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


def test_a_pinned_image_of_an_engine_is_loaded_or_built_before_it_is_pinned_again(
    small: Project, builder: Builder
) -> None:
    builder("lock", "small")
    lock = lock_file.read_lock(small.lock)
    (platform,) = lock.pins["small"]
    pins = lock.pins_of("small", platform)
    assert pins.base
    again = "`builder lock small --update base` pins the base again"
    for name, state, remedy in (
        (pins.base.requested, "this engine has sha256:", f"what to do: {again}"),
        ("builder-test-gone:1", "this engine has no such image", f"or build the image again, after which {again}"),
    ):
        image_yaml = small.dockerfiles / "small/image.yaml"
        projects.write(image_yaml, image_yaml.read_text().replace(pins.base.requested, name))
        other = BasePin(name, f"local:sha256:{'0' * 64}")
        projects.write(small.lock, text.dump_lock(lock.with_pins("small", platform, replace(pins, base=other))))
        output = " ".join(builder("build", "chat", code=7).stderr.split())
        assert f"{name} is pinned as {other.resolved}, an image without a registry; {state}" in output
        assert remedy in output

"""Makes a large project: numbered images with their build directories, and the served models."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.sandbox import Sandbox
from builder.base.project import Project
from builder.definitions import image
from builder.engine import images
from builder.lock import lock_file, text
from builder.lock.model import BasePin, ImageName, Lock, Model, NumberedImage, Pairing, Pins, Repository
from builder.plan.making import ImageInputs, make_plan
from builder.plan.plan_model import Plan
from tests import shipped_files
from tests.commands import kept

SHIPPED = shipped_files.project()


def make(sandbox: Sandbox, name: str, numbers: int, models: int) -> Project:
    """Makes a project with ``numbers`` tiny images, all with different content. Their records and build directories
    come from the shipped cpu definition. The latest images serve ``models``."""
    project = sandbox.project(name)
    repository = f"{sandbox.prefix}-{name}"
    recorded = {number: _numbered(sandbox, project, repository, number) for number in range(1, numbers + 1)}
    images.tag_image(sandbox.endpoint, f"{repository}:{numbers}", f"{repository}:latest")
    lock_entry = Repository(numbers + 1, numbers, tuple(range(numbers - 1, 0, -1)), recorded)
    served = {
        f"Org/Model-{n}": Model(
            Pairing(ImageName(repository, numbers - n)), (Pairing(ImageName(repository, numbers - n - 1)),)
        )
        for n in range(models)
    }
    lock = Lock(images={repository: lock_entry}, models=served)
    project.lock.write_text(text.dump_lock(lock), encoding="utf-8")
    return project


def _numbered(sandbox: Sandbox, project: Project, repository: str, number: int) -> NumberedImage:
    name = f"{repository}:{number}"
    sandbox.tiny_image(name)
    details = images.inspect_image(sandbox.endpoint, name)
    assert details is not None
    plan = _plan(repository, number)
    kept.write(project.builds / repository / str(number), plan)
    return kept.image(plan, fingerprint=images.fingerprint(details), platform=details.platform, size=details.size)


def _plan(repository: str, number: int) -> Plan:
    """Plans the cpu definition with its locked packages and a mod that only this number has."""
    definition = replace(image.load_image(SHIPPED, "cpu", "linux/amd64"), repository=repository)
    locked = lock_file.read_lock(SHIPPED.lock).pins_of("cpu", "linux/amd64")
    pins = Pins(BasePin("debian:bookworm-slim", f"sha256:{'b' * 64}"), locked.sources, locked.python)
    own = kept.baked("template", {"run.sh": "true\n", "chat.jinja": f"version {number}\n" * 200})
    return make_plan(ImageInputs(definition, pins, {}, (own,)))
